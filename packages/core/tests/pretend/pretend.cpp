// An accelerator that PyTorch takes for a real one (PrivateUse1), whose memory is the host's and whose kernels are the
// CPU's. It is as late as a device may be: a copy from page-locked memory is carried out only when a stream, an event or
// the host waits for it. New memory holds NaN. So whoever reads too early, or refills a buffer too early, gets wrong
// numbers, each time. It refuses what a GPU refuses (tensors on two devices), counts what makes the host wait, and
// has as little memory as a test wants.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/enum_tag.h>
#include <ATen/SDPBackend.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>

namespace {

constexpr auto KIND = c10::DeviceType::PrivateUse1;
constexpr auto KEY = c10::DispatchKey::PrivateUse1;
const c10::Device DEVICE(KIND, 0);

// ---------------------------------------------------------------- memory

struct Block {
  size_t bytes;
  c10::StreamId stream;
  std::set<c10::StreamId> used, recorded;
};

std::recursive_mutex lock;
std::map<void*, Block> blocks;
std::map<void*, size_t> pinned;
size_t in_use = 0, peak = 0, limit = size_t(1) << 40;
int64_t unsafe_frees = 0;  // freed while another stream, which nobody recorded, may still use it
std::map<std::string, int64_t> waits;  // what made the host wait, by name
thread_local c10::StreamId current = 0;

void give_back(void* pointer) {
  std::lock_guard<std::recursive_mutex> held(lock);
  auto found = blocks.find(pointer);
  for (auto stream : found->second.used)
    unsafe_frees += stream != found->second.stream && !found->second.recorded.count(stream);
  in_use -= found->second.bytes;
  blocks.erase(found);
  c10::GetDefaultCPUAllocator()->raw_deallocate(pointer);
}

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    std::lock_guard<std::recursive_mutex> held(lock);
    if (bytes == 0) return {nullptr, nullptr, &nothing, DEVICE};
    TORCH_CHECK_WITH(OutOfMemoryError, in_use + bytes <= limit, "pretend: out of memory, ", bytes, " bytes asked for");
    void* pointer = c10::GetDefaultCPUAllocator()->raw_allocate(bytes);
    std::memset(pointer, 0xFF, bytes);
    blocks[pointer] = {bytes, current, {}, {}};
    peak = std::max(peak, in_use += bytes);
    return {pointer, pointer, &give_back, DEVICE};
  }
  static void nothing(void*) {}
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }
};

void unpin(void* pointer) {
  std::lock_guard<std::recursive_mutex> held(lock);
  pinned.erase(pointer);
  c10::GetDefaultCPUAllocator()->raw_deallocate(pointer);
}

struct PageLocked final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    std::lock_guard<std::recursive_mutex> held(lock);
    void* pointer = c10::GetDefaultCPUAllocator()->raw_allocate(bytes);
    pinned[pointer] = bytes;
    return {pointer, pointer, &unpin, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &unpin; }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }
};

bool is_page_locked(const void* pointer) {
  std::lock_guard<std::recursive_mutex> held(lock);
  auto after = pinned.upper_bound(const_cast<void*>(pointer));
  if (after == pinned.begin()) return false;
  auto [begin, bytes] = *--after;
  return pointer < static_cast<const char*>(begin) + bytes;
}

Memory memory;
PageLocked page_locked;
REGISTER_ALLOCATOR(KIND, &memory)

// ---------------------------------------------------------------- streams and events

struct Queue {
  std::deque<std::function<void()>> work;
  int64_t queued = 0, finished = 0;
};
std::map<c10::StreamId, Queue> queues;
c10::StreamId newest = 0;

void finish(c10::StreamId stream, int64_t until = -1) {
  std::lock_guard<std::recursive_mutex> held(lock);
  auto& queue = queues[stream];
  while (!queue.work.empty() && (until < 0 || queue.finished < until)) {
    auto next = std::move(queue.work.front());
    queue.work.pop_front();
    next();
    ++queue.finished;
  }
}

void enqueue(c10::StreamId stream, std::function<void()> work) {
  std::lock_guard<std::recursive_mutex> held(lock);
  queues[stream].work.push_back(std::move(work));
  ++queues[stream].queued;
}

void finish_all() {
  std::lock_guard<std::recursive_mutex> held(lock);
  for (auto& [stream, queue] : queues) finish(stream);
}

struct Moment {
  c10::StreamId stream = 0;
  int64_t number = 0;
  std::chrono::steady_clock::time_point time;
};

void host_waits(const std::string& why) {
  std::lock_guard<std::recursive_mutex> held(lock);
  ++waits[why];
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return KIND; }
  c10::Device exchangeDevice(c10::Device) const override { return DEVICE; }
  c10::Device getDevice() const override { return DEVICE; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  static c10::Stream made(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, DEVICE, id); }
  c10::Stream getStream(c10::Device) const override { return made(current); }
  c10::Stream getDefaultStream(c10::Device) const override { return made(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device); }
  c10::Stream getNewStream(c10::Device, int = 0) const override {
    std::lock_guard<std::recursive_mutex> held(lock);
    return made(++newest);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return made(std::exchange(current, stream.id())); }
  bool queryStream(const c10::Stream& stream) const override { return queues[stream.id()].work.empty(); }
  void synchronizeStream(const c10::Stream& stream) const override {
    host_waits("stream");
    finish(stream.id());
  }
  void synchronizeDevice(c10::DeviceIndex) const override {
    host_waits("device");
    finish_all();
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Moment*>(event); }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    std::lock_guard<std::recursive_mutex> held(lock);
    if (*event == nullptr) *event = new Moment;
    *static_cast<Moment*>(*event) = {stream.id(), queues[stream.id()].queued, std::chrono::steady_clock::now()};
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    Moment moment = *static_cast<Moment*>(event);
    enqueue(stream.id(), [moment] { finish(moment.stream, moment.number); });
  }
  bool queryEvent(void* event) const override {  // asking is how time passes here: the second answer is yes
    if (event == nullptr) return true;
    Moment moment = *static_cast<Moment*>(event);
    bool over = queues[moment.stream].finished >= moment.number;
    finish(moment.stream, moment.number);
    return over;
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    Moment moment = *static_cast<Moment*>(event);
    finish(moment.stream, moment.number);
  }
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    auto taken = static_cast<Moment*>(to)->time - static_cast<Moment*>(from)->time;
    return std::chrono::duration<double, std::milli>(taken).count();
  }
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const override {
    std::lock_guard<std::recursive_mutex> held(lock);
    if (auto found = blocks.find(pointer.get()); found != blocks.end()) found->second.recorded.insert(stream.id());
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// ---------------------------------------------------------------- random numbers

struct Random final : c10::GeneratorImpl {
  at::Generator host = at::detail::createCPUGenerator();
  Random() : GeneratorImpl(DEVICE, c10::DispatchKeySet(KEY)) {}
  void set_current_seed(uint64_t seed) override { host.set_current_seed(seed); }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "pretend: generators have no offset"); }
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return host.current_seed(); }
  uint64_t seed() override { return host.seed(); }
  void set_state(const c10::TensorImpl& state) override {
    host.set_state(at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(const_cast<c10::TensorImpl*>(&state))));
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return host.get_state().getIntrusivePtr(); }
  Random* clone_impl() const override {
    auto copy = new Random;
    copy->host = host.clone();
    return copy;
  }
};

at::Generator& default_random() {
  static at::Generator found = at::make_generator<Random>();
  return found;
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return default_random(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<Random>(); }
  at::Device getDeviceFromPtr(void*) const override { return DEVICE; }
  bool isPinnedPtr(const void* pointer) const override { return is_page_locked(pointer); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &page_locked; }
};

// ---------------------------------------------------------------- kernels

bool here(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == KIND; }

at::Tensor on_host(const at::Tensor& tensor) {  // a view of the same memory
  if (!here(tensor)) return tensor;
  if (!tensor.numel()) return at::empty(tensor.sizes(), tensor.options().device(at::kCPU).requires_grad(false));
  {
    std::lock_guard<std::recursive_mutex> held(lock);
    if (auto found = blocks.find(const_cast<void*>(tensor.storage().data())); found != blocks.end())
      found->second.used.insert(current);
  }
  c10::Storage kept = tensor.storage();
  auto view = at::from_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
                            [kept](void*) {}, tensor.options().device(at::kCPU).requires_grad(false));
  if (tensor.is_conj()) view._set_conj(true);
  if (tensor.is_neg()) view._set_neg(true);
  return view;
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &memory, c10::DispatchKeySet(KEY),
                                           c10::dtype_or_default(dtype));
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &memory, c10::DispatchKeySet(KEY), c10::dtype_or_default(dtype), format);
}

at::Tensor to_device(const at::Tensor& host) {
  auto made = at::empty_strided(host.sizes(), host.strides(), host.options().device(DEVICE));
  on_host(made).copy_(host);
  return made;
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  auto source = on_host(from), target = on_host(to);
  bool later = !here(from) && non_blocking && from.numel() && is_page_locked(from.const_data_ptr());
  if (later) {
    enqueue(current, [source, target]() mutable { target.copy_(source); });
    return to;
  }
  finish(current);
  if (!here(from)) host_waits("copy to the device");
  if (!here(to)) host_waits("copy to the host");
  target.copy_(source);
  return to;
}

at::Tensor copy_and_resize(const at::Tensor& from, const at::Tensor& to) {
  const_cast<at::Tensor&>(to).resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar to_number(const at::Tensor& self) {
  host_waits("a number for the host");
  finish(current);
  return on_host(self).item();
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!format || *format == at::MemoryFormat::Contiguous, "pretend: resize_ only to contiguous tensors");
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  size_t bytes = (impl->numel() + impl->storage_offset()) * impl->itemsize();
  auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (bytes > storage->nbytes()) {
    auto data = memory.allocate(bytes);
    if (storage->nbytes()) std::memcpy(data.get(), storage->data(), storage->nbytes());
    storage->set_data_ptr_noswap(std::move(data));
    storage->set_nbytes(bytes);
  }
  return self;
}

at::Tensor strided(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride,
                   std::optional<int64_t> offset) {
  auto made = at::detail::make_tensor<at::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(self.storage()),
                                                      self.key_set(), self.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset.value_or(self.storage_offset()));
  return made;
}

at::Tensor reshape_alias(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride) {
  return strided(self, size, stride, std::nullopt);
}

at::Tensor view(const at::Tensor& self, at::IntArrayRef size) {
  auto wanted = at::infer_size_dv(size, self.numel());
  auto stride = at::detail::computeStride(self.sizes(), self.strides(), wanted);
  TORCH_CHECK(stride, "view size is not compatible with input tensor's size and stride");
  return strided(self, wanted, *stride, std::nullopt);
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size,
                        at::IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  if (stride.data() == nullptr || stride.size() != size.size()) impl->set_sizes_contiguous(size);
  else impl->set_sizes_and_strides(size, stride);
  return self;
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  int64_t count = source.nbytes() / self.dtype().itemsize();
  return set_storage(self, std::move(source), 0, {count}, {});
}

// Every other operation: the CPU's kernel on views of the same memory.
struct Call {
  const c10::OperatorHandle& op;
  std::vector<at::Tensor> devices, views;
  bool on_host_too = false;

  at::Tensor take(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (!here(tensor)) {
      on_host_too = on_host_too || tensor.dim() > 0;
      return tensor;
    }
    devices.push_back(tensor);
    views.push_back(on_host(tensor));
    return views.back();
  }

  at::Tensor give(const at::Tensor& host, bool alias) {
    if (!host.defined() || here(host)) return host;
    for (size_t i = 0; i < views.size(); ++i) {
      if (host.is_same(views[i])) {
        if (host.sizes() != devices[i].sizes()) set_tensor(devices[i], to_device(host));  // a result given no size
        return devices[i];
      }
      if (alias && host.numel() && views[i].numel()) {
        auto begin = static_cast<const char*>(devices[i].storage().data());
        auto at_byte = static_cast<const char*>(host.const_data_ptr()) - begin;
        if (at_byte >= 0 && size_t(at_byte) < devices[i].storage().nbytes()) {
          TORCH_CHECK(host.dtype() == devices[i].dtype(), "pretend: no view as another type: ", op.operator_name());
          return devices[i].as_strided(host.sizes(), host.strides(), at_byte / host.itemsize());
        }
      }
    }
    return to_device(host);
  }
};

c10::IValue mapped(const c10::IValue& value, const std::function<at::Tensor(const at::Tensor&)>& change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorList()) list.push_back(change(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList())
      list.push_back(tensor ? std::optional<at::Tensor>(change(*tensor)) : std::nullopt);
    return list;
  }
  return value;
}

bool chooses_by_mask(const c10::IValue& indices) {
  if (!indices.isOptionalTensorList()) return false;
  for (const std::optional<at::Tensor>& index : indices.toOptionalTensorList())
    if (index && index->defined() && (index->dtype() == at::kBool || index->dtype() == at::kByte)) return true;
  return false;
}

// Draw from the device's generator: kernels that are not given one take the host's default.
struct Drawing {
  at::Generator host = at::detail::getDefaultCPUGenerator();
  Random* device;
  at::Tensor kept;
  explicit Drawing(Random* from) : device(from), kept(host.get_state()) { host.set_state(device->host.get_state()); }
  ~Drawing() {
    device->host.set_state(host.get_state());
    host.set_state(kept);
  }
};

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  finish(current);
  const auto& schema = op.schema();
  const auto count = schema.arguments().size(), begin = stack->size() - count;
  const std::string name = schema.name();
  Call call{op};
  Random* random = nullptr;
  bool indexing = name == "aten::index" || name.rfind("aten::index_put", 0) == 0 || name == "aten::_index_put_impl_";
  bool masked = indexing && name != "aten::index" && chooses_by_mask((*stack)[begin + 1]);  // `index` calls nonzero
  for (size_t i = 0; i < count; ++i) {
    auto& value = (*stack)[begin + i];
    if (value.isGenerator()) {
      TORCH_CHECK(value.toGenerator().device() == DEVICE, name, ": a generator of ", value.toGenerator().device());
      random = value.toGenerator().get<Random>();
      value = c10::IValue();
    } else if (value.isDevice()) {
      value = c10::Device(c10::DeviceType::CPU);
    } else {
      value = mapped(value, [&](const at::Tensor& tensor) { return call.take(tensor); });
    }
  }
  if (call.on_host_too && !call.devices.empty()) {
    TORCH_CHECK(indexing, "Expected all tensors to be on the same device, in ", op.operator_name());
    host_waits("index on the host");
  }
  if (masked || (!indexing && (op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape))))
    host_waits(name.substr(6));
  {
    c10::impl::ExcludeDispatchKeyGuard without(c10::DispatchKeySet(KEY));
    std::optional<Drawing> drawing;
    if (random != nullptr || op.hasTag(at::Tag::nondeterministic_seeded))
      drawing.emplace(random != nullptr ? random : default_random().get<Random>());
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  const auto& returns = schema.returns();
  const auto first = stack->size() - returns.size();
  for (size_t i = 0; i < returns.size(); ++i) {
    bool alias = returns[i].alias_info() != nullptr;
    (*stack)[first + i] =
        mapped((*stack)[first + i], [&](const at::Tensor& tensor) { return call.give(tensor, alias); });
  }
}

// Operations that the CPU has no kernel of, or none that other devices could take.
at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, int64_t groups) {
  finish(current);
  auto shift = bias && bias->defined() ? std::optional<at::Tensor>(on_host(*bias)) : std::nullopt;
  return to_device(at::convolution(on_host(input), on_host(weight), shift, stride, padding, dilation, transposed,
                                   output_padding, groups));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> mask) {
  finish(current);
  const int64_t channels = gradient.size(1);
  auto [one, two, three] =
      at::convolution_backward(on_host(gradient), on_host(input), on_host(weight), at::IntArrayRef(&channels, 1), stride,
                               padding, dilation, transposed, output_padding, groups, mask);
  auto give = [](const at::Tensor& tensor) { return tensor.defined() ? to_device(tensor) : tensor; };
  return {give(one), give(two), give(three)};
}

void record_stream(at::Tensor& self, c10::Stream stream) { Guard().recordDataPtrOnStream(self.storage().data_ptr(), stream); }

int64_t plain_attention(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                        double, bool, std::optional<double>, bool) {
  return static_cast<int64_t>(at::SDPBackend::math);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_and_resize));
  m.impl("_local_scalar_dense", TORCH_FN(to_number));
  m.impl("resize_", TORCH_FN(resize));
  m.impl("as_strided", TORCH_FN(strided));
  m.impl("_reshape_alias", TORCH_FN(reshape_alias));
  m.impl("view", TORCH_FN(view));
  m.impl("convolution_overrideable", TORCH_FN(convolution));
  m.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward));
  m.impl("record_stream", TORCH_FN(record_stream));
  for (auto name : {"native_group_norm", "native_layer_norm"})  // composed of views for unknown devices
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
  m.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  m.impl("set_.source_Storage", TORCH_FN(set_whole_storage));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
}

// The lists of CUDA: which operations compute in 16 bits under autocast.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
  AT_FORALL_LOWER_PRECISION_FP(LOWER)
#define FLOAT32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_FP32(FLOAT32)
#define FLOAT32_SUM(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
  AT_FORALL_FP32_SET_OPT_DTYPE(FLOAT32_SUM)
#define PROMOTED(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_PROMOTE(PROMOTED)
}

}  // namespace

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &plain_attention)
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  m.def("allocated", [] { return in_use; });
  m.def("peak", [] { return peak; });
  m.def("forget_peak", [] { peak = in_use; });
  m.def("limit", [](size_t bytes) { limit = bytes; });
  m.def("unsafe_frees", [] { return unsafe_frees; });
  m.def("waits", [] { return waits; });
  m.def("forget_waits", [] { waits.clear(); });
  m.def("unfinished", [] {
    size_t found = 0;
    for (auto& [stream, queue] : queues) found += queue.work.size();
    return found;
  });
  m.def("default_generator", [] { return default_random(); });
}
