// Where rows lie, and how the elements of one are taken: whole vectors, then what is left.
#pragma once

#include "abi.h"
#include "vectors/vec.h"

namespace {

// Where row `index` begins, and from there every following row without a division.
template <class T>
class RowWalk {
 public:
  RowWalk(const vllm_ir_rows& rows, int64_t index) : rows_(rows) {
    row_ = static_cast<T*>(rows.data);
    for (int32_t d = rows.dims - 1; d >= 0; --d) {
      at_[d] = index % rows.size[d];
      index /= rows.size[d];
      row_ += at_[d] * rows.stride[d];
    }
  }
  T* row() const { return row_; }
  void next() {
    for (int32_t d = rows_.dims - 1; d >= 0; --d) {
      row_ += rows_.stride[d];
      if (++at_[d] < rows_.size[d]) return;
      row_ -= rows_.size[d] * rows_.stride[d];
      at_[d] = 0;
    }
  }

 private:
  const vllm_ir_rows& rows_;
  T* row_;
  int64_t at_[VLLM_IR_MAX_DIMS];
};

template <class A, class B>
constexpr bool kSame = false;
template <class A>
constexpr bool kSame<A, A> = true;

// How rows of T are taken.
template <class T>
using Block = Both<Wide, kSame<T, Bf16>>;

// How rows are taken where much is computed for each element: twice as many vectors in flight, if there are registers
// for them.
template <class T, bool = (Wide::kLanes >= 16)>
struct Busy {
  using Block = Both<::Block<T>, false>;
};
template <class T>
struct Busy<T, false> {
  using Block = ::Block<T>;
};

// Calls body(V(), i) for whole vectors of V between two indices, then body(Scalar(), i) for what is left.
template <class V, class Body>
inline __attribute__((always_inline)) void each(int64_t begin, int64_t end, Body body) {
  int64_t i = begin;
  for (; i + V::kLanes <= end; i += V::kLanes) body(V(), i);
  for (; i < end; ++i) body(Scalar(), i);
}

}  // namespace
