// Where the rows of a tensor lie. Their elements are adjacent; the rows themselves may lie anywhere.
#pragma once

// Row number (i0 * size1 + i1) * size2 + i2 begins i0 * stride0 + i1 * stride1 + i2 * stride2 elements behind data.
struct Rows {
  void* data;
  long long size1, size2;
  long long stride0, stride1, stride2;

  __device__ __forceinline__ long long offset(long long row) const {
    if (size1 == 1 && size2 == 1) return row * stride0;  // rows at one distance: no division
    const long long outer = row / size2;
    return outer / size1 * stride0 + outer % size1 * stride1 + row % size2 * stride2;
  }

  template <typename T>
  __device__ __forceinline__ T* at(long long row) const {
    return static_cast<T*>(data) + offset(row);
  }
};
