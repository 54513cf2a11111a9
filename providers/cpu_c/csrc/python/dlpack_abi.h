// The part of DLPack 1.x that reads a tensor through its C exchange table: names and layout are the standard's.
//
// torch has the table since 2.10 as `Tensor.__dlpack_c_exchange_api__`. It is how one binary serves every torch: no
// torch header, and no attribute read through Python on the way of a call.
#pragma once

#include <stdint.h>

struct DLPackVersion {
  uint32_t major, minor;
};

struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};

struct DLDataType {
  uint8_t code, bits;
  uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null means contiguous
  uint64_t byte_offset;
};

struct DLPackExchangeAPIHeader {
  DLPackVersion version;
  DLPackExchangeAPIHeader* prev_api;
};

struct DLPackExchangeAPI {
  DLPackExchangeAPIHeader header;
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object_no_sync;
  void* managed_tensor_to_py_object_no_sync;
  // Fills a tensor that borrows from the Python object; 0, or -1 with a Python exception set. May be null.
  int (*dltensor_from_py_object_no_sync)(void* object, DLTensor* out);
  void* current_work_stream;
};

constexpr uint32_t kDLPackMajor = 1;
constexpr int32_t kDLCPU = 1;
constexpr uint8_t kDLInt = 0, kDLFloat = 2, kDLBfloat = 4;
constexpr char kDLPackCapsule[] = "dlpack_exchange_api";
