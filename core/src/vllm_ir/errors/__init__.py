"""Every error of vllm-ir; the sentences live in one module a subject.

IrError
├── DeclarationError (ValueError)    an author's mistake: BadName, ReservedName, BadSignature, KeywordOnlyParameter,
│                                    SchemaMismatch, PredicateMismatch, BadValue, UnknownActivation, InplaceOutputs,
│                                    InplaceNotAllowed, DuplicateOp, DuplicateImplementation, TornDeclaration,
│                                    MissingGenerator, MissingTolerance
├── ConfigurationError (ValueError)  a user's mistake: UnknownOp, UnknownProvider, ProviderLacksOp,
│                                    UnusableProvider, MalformedPriority, MalformedVariable, MalformedSettings
├── SelectionError (RuntimeError)    nothing may run: NoImplementation, RefusedArguments, PredicateFailed
├── CallError (TypeError)            a wrong call: WrongArgument, WrongCall
├── ProviderError (RuntimeError)     a distribution that did not load, one class a kind of failure
└── InternalError (RuntimeError)     a fault in vllm-ir
"""

from __future__ import annotations

from vllm_ir.errors.base import (
    CallError,
    ConfigurationError,
    DeclarationError,
    InternalError,
    IrError,
    IrWarning,
    ProviderError,
    SelectionError,
    did_you_mean,
    listed,
)
from vllm_ir.errors.configuration import (
    MalformedPriority,
    MalformedSettings,
    MalformedVariable,
    ProviderLacksOp,
    UnknownOp,
    UnknownProvider,
    UnusableProvider,
)
from vllm_ir.errors.declaration import (
    BadName,
    BadSignature,
    BadValue,
    DuplicateImplementation,
    DuplicateOp,
    InplaceNotAllowed,
    InplaceOutputs,
    KeywordOnlyParameter,
    MissingGenerator,
    MissingTolerance,
    PredicateMismatch,
    ReservedName,
    SchemaMismatch,
    TornDeclaration,
    UnknownActivation,
)
from vllm_ir.errors.selection import (
    NoImplementation,
    PredicateFailed,
    RefusedArguments,
    WrongArgument,
    WrongCall,
)

__all__ = [
    "BadName",
    "BadSignature",
    "BadValue",
    "CallError",
    "ConfigurationError",
    "DeclarationError",
    "DuplicateImplementation",
    "DuplicateOp",
    "InplaceNotAllowed",
    "InplaceOutputs",
    "InternalError",
    "IrError",
    "IrWarning",
    "KeywordOnlyParameter",
    "MalformedPriority",
    "MalformedSettings",
    "MalformedVariable",
    "MissingGenerator",
    "MissingTolerance",
    "NoImplementation",
    "PredicateFailed",
    "PredicateMismatch",
    "ProviderError",
    "ProviderLacksOp",
    "RefusedArguments",
    "ReservedName",
    "SchemaMismatch",
    "SelectionError",
    "TornDeclaration",
    "UnknownActivation",
    "UnknownOp",
    "UnknownProvider",
    "UnusableProvider",
    "WrongArgument",
    "WrongCall",
    "did_you_mean",
    "listed",
]
