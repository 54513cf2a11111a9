// Runs every kernel over a list of shapes on memory that ends where the last row ends, with every instruction set, on
// one thread and on several, out of place and in place, and holds the results against the scalar path's on one thread.
// Built with a sanitizer, it finds what is read or written outside, what is undefined, and what threads race for.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "abi.h"

namespace {

void start_threads(void (*work)(void*), void* data, int32_t threads) {
  std::vector<std::thread> others;
  for (int32_t i = 1; i < threads; ++i) others.emplace_back(work, data);
  work(data);
  for (std::thread& other : others) other.join();
}

const vllm_ir_team kAlone = {1, nullptr};
const vllm_ir_team kTeam = {3, start_threads};

// 8-bit results have dtypes from here on, in the order of vllm_ir_quantized.
constexpr int32_t kBytes = 100;

int64_t bytes(int32_t dtype) { return dtype >= kBytes ? 1 : dtype == VLLM_IR_F32 ? 4 : 2; }

uint64_t state = 7;

uint32_t random_bits() {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<uint32_t>(state >> 32);
}

// A heap block of exactly `count` elements: the sanitizer knows its ends. Half are ordinary numbers, half any bits.
class Memory {
 public:
  Memory(int64_t count, int32_t dtype) : size_(static_cast<size_t>(count * bytes(dtype))), data_(new char[size_]) {
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t bits = random_bits();
      const float ordinary = static_cast<float>(static_cast<int32_t>(bits)) / 1e9f;
      uint32_t value;
      std::memcpy(&value, &ordinary, sizeof value);
      if (i % 2 != 0) value = random_bits();
      const auto narrow = static_cast<uint16_t>(dtype == VLLM_IR_BF16 ? value >> 16 : i % 2 != 0 ? value : bits >> 18);
      if (dtype >= kBytes) {
        data_[static_cast<size_t>(i)] = static_cast<char>(bits);
      } else if (dtype == VLLM_IR_F32) {
        std::memcpy(data_.get() + 4 * i, &value, 4);
      } else {
        std::memcpy(data_.get() + 2 * i, &narrow, 2);
      }
    }
  }
  Memory(const Memory& other) : size_(other.size_), data_(new char[size_]) {
    if (size_ > 0) std::memcpy(data_.get(), other.data_.get(), size_);
  }
  void* get() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  size_t size_;
  std::unique_ptr<char[]> data_;
};

int failures = 0;
long calls = 0;

bool is_nan(uint32_t bits, int32_t dtype) {
  switch (dtype) {
    case kBytes + VLLM_IR_E4M3FN:
      return (bits & 0x7fu) == 0x7fu;
    case kBytes + VLLM_IR_E4M3FNUZ:
      return bits == 0x80u;
    case kBytes + VLLM_IR_E5M2:
      return (bits & 0x7fu) > 0x7cu;
    case VLLM_IR_F32:
      return (bits & 0x7fffffffu) > 0x7f800000u;
    case VLLM_IR_BF16:
      return (bits & 0x7fffu) > 0x7f80u;
    default:
      return (bits & 0x7fffu) > 0x7c00u;
  }
}

// An output and the dtype that it is compared in.
struct Output {
  const Memory* memory;
  int32_t dtype;
};

void compare(const Memory& got, const Memory& wanted, int32_t dtype, const std::string& what) {
  const auto each = static_cast<size_t>(bytes(dtype));
  for (size_t at = 0; at < got.size(); at += each) {
    uint32_t a = 0, b = 0;
    std::memcpy(&a, static_cast<char*>(got.get()) + at, each);
    std::memcpy(&b, static_cast<char*>(wanted.get()) + at, each);
    if (a != b && !(is_nan(a, dtype) && is_nan(b, dtype))) {
      std::fprintf(stderr, "%s: element %zu is %08x, scalar has %08x\n", what.c_str(), at / each, a, b);
      ++failures;
      return;
    }
  }
}

// The rows of a case: how many, how they lie, and how much memory that takes.
struct Layout {
  const char* name;
  int64_t first, second;  // rows are first * second
  int64_t gap;            // elements between rows beyond a row
  bool swapped;           // the two leading dimensions are exchanged in memory
};

const Layout kLayouts[] = {
    {"none", 0, 1, 0, false},   {"one", 1, 1, 0, false},     {"contiguous", 1, 5, 0, false},
    {"packed", 1, 4, 37, false}, {"swapped", 3, 4, 5, true}, {"many", 1, 300, 0, false},
};

vllm_ir_rows rows_of(const Layout& layout, const Memory& memory, int64_t row) {
  vllm_ir_rows rows = {};
  rows.data = memory.get();
  const int64_t step = row + layout.gap;
  rows.dims = 2;
  rows.size[0] = layout.first;
  rows.size[1] = layout.second;
  rows.stride[0] = layout.swapped ? step : step * layout.second;
  rows.stride[1] = layout.swapped ? step * layout.first : step;
  return rows;
}

int64_t count(const Layout& layout) { return layout.first * layout.second; }

// The elements from the first of the first row to the last of the last one, and not one more.
int64_t extent(const Layout& layout, int64_t row) {
  return count(layout) == 0 ? 0 : (count(layout) - 1) * (row + layout.gap) + row;
}

void expect(int32_t status, const std::string& what) {
  ++calls;
  if (status == VLLM_IR_OK) return;
  std::fprintf(stderr, "%s: status %d\n", what.c_str(), status);
  ++failures;
}

// Runs one call as the scalar path on one thread does, then as all others do, and compares.
template <class Run>
void everywhere(const std::string& what, const std::vector<Output>& outputs, Run run) {
  vllm_ir_cpu_c_use_isa("scalar");
  expect(run(&kAlone), what);
  std::vector<Memory> wanted;
  for (const Output& output : outputs) wanted.emplace_back(*output.memory);
  for (const char* const* isa = vllm_ir_cpu_c_isas(); *isa != nullptr; ++isa) {
    vllm_ir_cpu_c_use_isa(*isa);
    for (const vllm_ir_team* team : {&kAlone, &kTeam}) {
      const std::string where = what + " " + *isa + (team == &kAlone ? " alone" : " in a team");
      expect(run(team), where);
      for (size_t i = 0; i < outputs.size(); ++i) compare(*outputs[i].memory, wanted[i], outputs[i].dtype, where);
    }
  }
}

void norms(const Layout& layout, int64_t size, int32_t dtype, int weight_kind) {
  const std::string what =
      "norm " + std::string(layout.name) + " " + std::to_string(size) + " dtype " + std::to_string(dtype) + " weight " +
      std::to_string(weight_kind);
  const int32_t weight_dtype = weight_kind == 2 ? VLLM_IR_F32 : dtype;
  const Memory x(extent(layout, size), dtype), residual(extent(layout, size), dtype), weight(size, weight_dtype);
  const Memory out(count(layout) * size, dtype), total(count(layout) * size, dtype);
  vllm_ir_norm call = {};
  call.x = rows_of(layout, x, size);
  call.out = out.get();
  call.weight = weight_kind == 0 ? nullptr : weight.get();
  call.weight_dtype = weight_dtype;
  call.hidden_size = size;
  call.dtype = dtype;
  call.epsilon = 1e-6f;
  for (const int64_t variance : {size, (size + 1) / 2}) {
    call.variance_size = variance;
    everywhere(what, {{&out, dtype}}, [&](const vllm_ir_team* team) { return vllm_ir_cpu_c_norm(&call, team); });
  }
  call.residual = rows_of(layout, residual, size);
  call.residual_out = total.get();
  everywhere(what + " add", {{&out, dtype}, {&total, dtype}},
             [&](const vllm_ir_team* team) { return vllm_ir_cpu_c_norm(&call, team); });
  if (layout.gap != 0 || count(layout) == 0) return;
  const Memory kept_x(x), kept_residual(residual);
  call.out = x.get();
  call.residual_out = residual.get();
  everywhere(what + " in place", {{&x, dtype}, {&residual, dtype}}, [&](const vllm_ir_team* team) {
    std::memcpy(x.get(), kept_x.get(), x.size());
    std::memcpy(residual.get(), kept_residual.get(), residual.size());
    return vllm_ir_cpu_c_norm(&call, team);
  });
}

void gates(const Layout& layout, int64_t size, int32_t dtype) {
  const Memory x(extent(layout, 2 * size), dtype), out(count(layout) * size, dtype);
  for (int32_t activation = VLLM_IR_SILU; activation <= VLLM_IR_GELU_TANH; ++activation) {
    for (const int64_t block : {int64_t{0}, int64_t{32}, int64_t{1} << 30}) {
      vllm_ir_gate call = {};
      call.x = rows_of(layout, x, 2 * size);
      call.out = out.get();
      call.size = size;
      call.activation = activation;
      call.dtype = dtype;
      call.block = block;
      const std::string what = "gate " + std::string(layout.name) + " " + std::to_string(size) + " dtype " +
                               std::to_string(dtype) + " activation " + std::to_string(activation);
      everywhere(what, {{&out, dtype}}, [&](const vllm_ir_team* team) { return vllm_ir_cpu_c_gate(&call, team); });
    }
  }
}

void turns(const Layout& layout, int64_t head_size, int64_t rotary_dim, int32_t dtype) {
  constexpr int64_t kPositions = 9;
  const Memory x(extent(layout, head_size), dtype), out(count(layout) * head_size, dtype);
  for (const int32_t cache_dtype : {dtype, static_cast<int32_t>(VLLM_IR_F32)}) {
    const Memory cache(kPositions * rotary_dim, cache_dtype);
    for (const int wide : {0, 1}) {
      const auto tokens = static_cast<size_t>(layout.first == 0 ? 0 : layout.second);
      std::vector<int64_t> long_positions(tokens);
      std::vector<int32_t> short_positions(tokens);
      for (size_t i = 0; i < tokens; ++i) {
        long_positions[i] = static_cast<int64_t>(random_bits()) % kPositions;
        short_positions[i] = static_cast<int32_t>(long_positions[i]);
      }
      for (const int kind : {0, 1, 2, 3, 4, 5}) {  // both styles, turned alone and normalised without and with a weight
        const int neox = kind % 2;
        const Memory weight(head_size, dtype);
        vllm_ir_rotary call = {};
        call.normalized = kind > 1;
        call.weight = kind > 3 ? weight.get() : nullptr;
        call.weight_dtype = dtype;
        call.epsilon = 1e-6f;
        call.x = rows_of(layout, x, head_size);
        call.out = out.get();
        call.positions = wide ? static_cast<void*>(long_positions.data()) : short_positions.data();
        call.positions_wide = wide;
        call.tokens = static_cast<int64_t>(tokens);
        call.head_size = head_size;
        call.rotary_dim = rotary_dim;
        call.cache = cache.get();
        call.cache_stride = rotary_dim;
        call.max_position = kPositions;
        call.cache_dtype = cache_dtype;
        call.dtype = dtype;
        call.neox = neox;
        const std::string what = "rotary " + std::string(layout.name) + " " + std::to_string(head_size) + "/" +
                                 std::to_string(rotary_dim) + " dtype " + std::to_string(dtype) + " kind " +
                                 std::to_string(kind);
        everywhere(what, {{&out, dtype}}, [&](const vllm_ir_team* team) { return vllm_ir_cpu_c_rotary(&call, team); });
        if (tokens == 0) continue;
        long_positions[0] = kPositions;
        short_positions[0] = -1;
        if (vllm_ir_cpu_c_rotary(&call, &kTeam) != VLLM_IR_BAD_POSITION) {
          std::fprintf(stderr, "%s: a position outside the cache was taken\n", what.c_str());
          ++failures;
        }
        long_positions[0] = 0;
        short_positions[0] = 0;
      }
    }
  }
}

// One source and one way to scale, with a residual in memory of its own and, where there is no gap, in place.
void quants(const Layout& layout, int64_t size, int32_t dtype, int32_t source, int32_t scaling, int32_t quantized) {
  const bool add = source == VLLM_IR_ADD_NORM;
  const int64_t row = source == VLLM_IR_GATED ? 2 * size : size;
  const int64_t group = size % 3 == 0 ? size / 3 : size;
  const int64_t groups = scaling == VLLM_IR_GROUP ? size / group : 1;
  const Memory x(extent(layout, row), dtype), residual(add ? extent(layout, row) : 0, dtype), weight(size, dtype);
  const Memory out(count(layout) * size, kBytes + quantized), total(add ? count(layout) * size : 0, dtype);
  const Memory scales(scaling == VLLM_IR_TENSOR ? 1 : count(layout) * groups, VLLM_IR_F32);
  const std::vector<float> given(static_cast<size_t>(scaling == VLLM_IR_CHANNEL ? size : 1), 0.37f);
  const float bound = 1.5f;
  vllm_ir_quant call = {};
  call.x = rows_of(layout, x, row);
  call.weight = source == VLLM_IR_NORM || add ? weight.get() : nullptr;
  call.weight_dtype = dtype;
  call.out = static_cast<uint8_t*>(out.get());
  call.size = size;
  call.group_size = group;
  call.epsilon = 1e-6f;
  call.dtype = dtype;
  call.source = source;
  call.scaling = scaling;
  call.quantized = quantized;
  std::vector<Output> outputs = {{&out, kBytes + quantized}};
  if (scaling == VLLM_IR_GIVEN || scaling == VLLM_IR_CHANNEL) {
    call.scale = given.data();
  } else {
    call.scales = static_cast<float*>(scales.get());
    outputs.push_back({&scales, VLLM_IR_F32});
  }
  if (add) {
    call.residual = rows_of(layout, residual, row);
    call.residual_out = total.get();
    outputs.push_back({&total, dtype});
  }
  for (const int variant : {0, 1}) {  // rows of scales, then columns; without what cuts or rounds a scale, then with it
    call.bound = variant == 0 ? nullptr : &bound;
    call.power_of_two = variant;
    call.token_stride = variant == 0 ? groups : 1;
    call.group_stride = variant == 0 ? 1 : count(layout);
    const std::string what = "quant " + std::string(layout.name) + " " + std::to_string(size) + " dtype " +
                             std::to_string(dtype) + " source " + std::to_string(source) + " scaling " +
                             std::to_string(scaling) + " to " + std::to_string(quantized);
    everywhere(what, outputs, [&](const vllm_ir_team* team) { return vllm_ir_cpu_c_quant(&call, team); });
    if (!add || layout.gap != 0 || count(layout) == 0) continue;
    const Memory kept(residual);
    vllm_ir_quant in_place = call;
    in_place.residual_out = residual.get();
    outputs.back().memory = &residual;
    everywhere(what + " in place", outputs, [&](const vllm_ir_team* team) {
      std::memcpy(residual.get(), kept.get(), residual.size());
      return vllm_ir_cpu_c_quant(&in_place, team);
    });
    std::memcpy(residual.get(), kept.get(), residual.size());
    outputs.back().memory = &total;
  }
}

void refusals() {
  vllm_ir_norm norm = {};
  norm.dtype = 9;
  vllm_ir_gate gate = {};
  gate.size = -1;
  vllm_ir_rotary rotary = {};
  rotary.rotary_dim = 3;
  rotary.head_size = 8;
  vllm_ir_quant unknown = {};
  unknown.quantized = 3;
  vllm_ir_quant split = {};
  split.scaling = VLLM_IR_GROUP;
  split.size = 8;
  split.group_size = 3;
  vllm_ir_quant nothing = {};
  nothing.scaling = VLLM_IR_TOKEN;
  if (vllm_ir_cpu_c_quant(&unknown, nullptr) != VLLM_IR_BAD_DTYPE ||
      vllm_ir_cpu_c_quant(&split, nullptr) != VLLM_IR_BAD_SIZE ||
      vllm_ir_cpu_c_quant(&nothing, nullptr) != VLLM_IR_BAD_SIZE ||
      vllm_ir_cpu_c_norm(&norm, nullptr) != VLLM_IR_BAD_DTYPE || vllm_ir_cpu_c_gate(&gate, nullptr) != VLLM_IR_BAD_SIZE ||
      vllm_ir_cpu_c_rotary(&rotary, nullptr) != VLLM_IR_BAD_SIZE || vllm_ir_cpu_c_use_isa("none") != 0) {
    std::fprintf(stderr, "a call that makes no sense was taken\n");
    ++failures;
  }
}

}  // namespace

int main() {
  for (const Layout& layout : kLayouts) {
    for (int32_t dtype = VLLM_IR_F32; dtype <= VLLM_IR_F16; ++dtype) {
      for (const int64_t size : {1, 2, 7, 8, 15, 31, 32, 33, 64, 100, 576, 1028, 16384}) {
        if (count(layout) > 20 && size > 1028) continue;
        for (int kind = 0; kind < 3; ++kind) norms(layout, size, dtype, kind);
        gates(layout, size, dtype);
        if (size > 33 && size != 576 && size != 16384) continue;
        for (int32_t source = VLLM_IR_PLAIN; source <= VLLM_IR_GATED; ++source) {
          for (int32_t scaling = VLLM_IR_GIVEN; scaling <= VLLM_IR_GROUP; ++scaling) {
            quants(layout, size, dtype, source, scaling, static_cast<int32_t>(size + scaling) % 3);
          }
        }
      }
      for (const auto& [head_size, rotary_dim] :
           {std::pair<int64_t, int64_t>{2, 2}, {16, 6}, {64, 64}, {80, 20}, {128, 128}}) {
        turns(layout, head_size, rotary_dim, dtype);
      }
    }
  }
  refusals();
  std::printf("%ld calls", calls);
  for (const char* const* isa = vllm_ir_cpu_c_isas(); *isa != nullptr; ++isa) std::printf(" %s", *isa);
  std::printf(", %d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
