"""Processes that probe: who is run beside whom, what is left behind, and that nothing outlives its time."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from vllm_ir.diagnosis import children
from vllm_ir.diagnosis.results import Target
from vllm_ir.environment import Environment
from vllm_ir.platforms import Platform
from vllm_ir.plugins.distributions import scan
from vllm_ir.plugins.static import survey
from vllm_ir.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable

TOLD = "import os, sys\nout = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)\n"


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Give what puts a short program in the place of every child, and returns the commands of those started."""
    commands: list[str] = []

    def put(body: str) -> list[str]:
        """Write the program, and an interpreter that runs it whatever it is told."""
        program = tmp_path / "program.py"
        program.write_text(TOLD + body, encoding="utf-8")
        shell = tmp_path / "python"
        shell.write_text(f'#!/bin/sh\nshift 4\nexec {sys.executable} -X faulthandler -S {program} "$@"\n')
        shell.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(shell))
        return commands

    return put


def add(folder: Path, name: str, top: str, table: str = "") -> None:
    """Write what an installer leaves of a distribution `dist-<name>`, with a manifest."""
    metadata = folder / f"dist_{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: dist-{name}\nVersion: 1.0\n", encoding="utf-8")
    lines = f"[vllm_ir.providers]\n{name} = pack_{name}.hooks\n"
    (metadata / "entry_points.txt").write_text(lines, encoding="utf-8")
    (folder / f"pack_{name}").mkdir()
    (folder / f"pack_{name}" / "__init__.py").touch()
    head = f'schema = 1\nprovider-api = "1"\nsummary = "x"\n{top}\n'
    (folder / f"pack_{name}" / "vllm_ir_provider.toml").write_text(head + table, encoding="utf-8")


def alive(pid: int) -> bool:
    """Tell whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_each_is_alone_but_for_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other distributions are denied, not the one whose op it implements; and so is what the operator denies."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("one", "two", "unwanted"):
        add(tmp_path, name, "", f"[providers.{name}]\nplatforms = {{ cpu = {{}} }}\nops = {{ rms_norm = {{}} }}\n")
    add(tmp_path, "adds", 'adds-ops = ["rms_norm"]')
    environment = Environment.read({"VLLM_IR_PROVIDERS_DISABLED": "unwanted,one:rms_norm_2,two:rms_norm"})
    policy = Policy.read(environment)
    machine = Platform(name="cpu", device_type="cpu")
    found = children.targets(survey(environment, machine, list(scan([str(tmp_path)])), policy=policy), policy)
    names = {target.provider: set(target.denied) for target in found}
    # Two may run none of its ops, so that it may not load at all.
    assert set(names) == {"native", "unfused", "one"}
    assert names["one"] >= {"dist-two", "dist-unwanted", "unwanted", "two:rms_norm"}
    assert not names["one"] & {"dist-one", "one", "dist-adds"}


def test_a_process_leaves_nothing_behind(stand_in: Callable[[str], list[str]], tmp_path: Path) -> None:
    """What it started is ended with it, even where it holds on to what the process printed to."""
    stand_in(
        "import subprocess\n"
        f"started = subprocess.Popen([{sys.executable!r}, '-S', '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(started.pid))\n"
        'os.write(out, b\'{"step": "done"}\\n\')\n'
    )
    began = time.monotonic()
    (result,) = children.probe([Target("p", "d", "1")], timeout=20)
    assert result.outcome == "runs"
    assert time.monotonic() - began < 15
    pid = int((tmp_path / "pid").read_text(encoding="utf-8"))
    until = time.monotonic() + 5
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.01)
    assert not alive(pid)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("last", "environment"), [('os.write(out, b\'{"step": "done"}\\n\')', "None"), ("time.sleep(60)", "{}")]
)
def test_a_session_of_its_own_is_no_way_out(
    stand_in: Callable[[str], list[str]], tmp_path: Path, last: str, environment: str
) -> None:
    """Neither a child in another session, nor one whose parent has gone, nor, in time, one without the mark."""
    stand_in(
        "import subprocess, time\n"
        f"sleep = [{sys.executable!r}, '-S', '-c', 'import time; time.sleep(60)']\n"
        "def start(**options):\n"
        "    return subprocess.Popen(sleep, start_new_session=True, **options).pid\n"
        f"pids = [start(), start(env={environment})]\n"
        "ends, goes = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.write(goes, str(start()).encode())\n"
        "    os._exit(0)\n"
        "pids.append(int(os.read(ends, 20)))\n"
        "os.wait()\n"
        f"open({str(tmp_path / 'pids')!r}, 'w').write(' '.join(map(str, pids)))\n"
        f"{last}\n"
    )
    children.probe([Target("p", "d", "1")], timeout=1)
    pids = [int(each) for each in (tmp_path / "pids").read_text(encoding="utf-8").split()]
    until = time.monotonic() + 5
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.01)
    assert [pid for pid in pids if alive(pid)] == []
    assert len(pids) == 3


def test_a_step_has_its_time_and_not_the_whole(stand_in: Callable[[str], list[str]]) -> None:
    """Whoever goes on telling may take long; whoever stops is ended, whatever signals it ignores."""
    stand_in(
        "import signal, time\n"
        "for number in range(5):\n"
        '    os.write(out, b\'{"step": "a step"}\\n\')\n'
        "    time.sleep(0.6)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        'os.write(out, b\'{"step": "the last"}\\n\')\n'
        "time.sleep(60)\n"
    )
    (result,) = children.probe([Target("p", "d", "1")], timeout=2)
    assert (result.outcome, result.step) == ("timed out", "the last")
    assert 4 < result.seconds < 30
    assert "program.py" in result.output
    assert "Aborted" not in result.output
    assert result.output.startswith(
        "(vllm-ir ended it: took more than 2 seconds and was ended; --timeout gives it more."
    )


def test_starting_has_more_time(stand_in: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing torch is not the provider's fault."""
    assert children.PATIENCE > 1
    monkeypatch.setattr(children, "PATIENCE", 100)
    stand_in('import time\ntime.sleep(1)\nos.write(out, b\'{"step": "done"}\\n\')\n')
    (result,) = children.probe([Target("p", "d", "1")], timeout=0.5)
    assert result.outcome == "runs"


def test_whoever_prints_without_end_is_ended(
    stand_in: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk is not filled by a report."""
    monkeypatch.setattr(children, "NOISE", 1_000_000)
    stand_in("while True:\n    print('noise' * 1000, flush=True)\n")
    (result,) = children.probe([Target("p", "d", "1")], timeout=30)
    assert result.outcome == "crashed"
    assert result.reason == "starting: it printed more than 1 MB and was ended."
    assert len(result.output) <= 4000


def test_what_is_told_in_garbage_is_left_out(stand_in: Callable[[str], list[str]]) -> None:
    """Half a line, a list, and a part that is none."""
    stand_in('os.write(out, b\'[1]\\nnonsense\\n{"result": 3}\\n{"step": "done"}\\n{"st\')\n')
    (result,) = children.probe([Target("p", "d", "1")])
    assert (result.outcome, result.parts) == ("runs", ())


def test_as_many_run_at_a_time_as_are_wanted(stand_in: Callable[[str], list[str]]) -> None:
    """Results come in the order of the question, and each is told when it is there."""
    stand_in("import time\ntime.sleep(0.4 if sys.argv[3] == 'a' else 0)\nos.write(out, b'{\"step\": \"done\"}\\n')\n")
    told: list[str] = []
    wanted = [Target(name, "d", "1") for name in "abc"]
    found = children.probe(wanted, jobs=2, told=lambda each: told.append(each.target.provider))
    assert [each.target.provider for each in found] == ["a", "b", "c"]
    assert told[-1] == "a"
    assert children._cores() >= 1


def test_an_interrupt_leaves_no_process(stand_in: Callable[[str], list[str]], tmp_path: Path) -> None:
    """Whoever asked goes; the children go with them, and so does the folder."""
    stand_in(
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()) + ' ' + sys.argv[1])\n"
        "os.write(out, b'{\"step\": \"done\"}\\n')\nimport time\ntime.sleep(0.2 if sys.argv[3] == 'a' else 60)\n"
    )

    def interrupt(_: object) -> None:
        """Be the user's Ctrl-C."""
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        children.probe([Target("a", "d", "1"), Target("b", "d", "1")], jobs=2, told=interrupt)
    pid, told = (tmp_path / "pid").read_text(encoding="utf-8").split()
    assert not alive(int(pid))
    assert not Path(told).exists()


def test_a_child_has_this_path_and_nobodys_wishes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables that decide who runs are not judged here, so they take no part; the cache is that of every run."""
    for name in ("VLLM_IR_OP_PRIORITY", "VLLM_IR_LOCK", "VLLM_IR_STRICT", "VLLM_BATCH_INVARIANT"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("VLLM_IR_CACHE", "/somewhere")
    variables = children._variables(Target("p", "d", "1", ("x", "y:op")))
    ours = {name: value for name, value in variables.items() if name.startswith("VLLM_")}
    assert ours == {"VLLM_IR_CACHE": "/somewhere", "VLLM_IR_PROVIDERS_DISABLED": "x,y:op"}
    assert variables["PYTHONPATH"].split(os.pathsep) == [str(Path(each).absolute()) for each in sys.path]
