#include "hccl.h"

#include <algorithm>

#include "simulated.h"

namespace sim {
namespace {

using c10d::OpType;
using c10d::ReduceOp;
using Tensors = Hccl::Tensors;
using WorkPtr = Hccl::WorkPtr;

// The alias owns the npu memory: gloo may go on after the caller dropped its tensor.
at::Tensor on_cpu(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.device().type() == kNPU, "hccl: No backend for a tensor on ", tensor.device(), ": it takes npu tensors only");
  return Aliases(/*owning=*/true).cpu_alias(tensor);
}

Tensors on_cpu(const Tensors& tensors) {
  Tensors aliases;
  for (const auto& tensor : tensors) aliases.push_back(on_cpu(tensor));
  return aliases;
}

std::vector<Tensors> on_cpu(const std::vector<Tensors>& lists) {
  std::vector<Tensors> aliases;
  for (const auto& list : lists) aliases.push_back(on_cpu(list));
  return aliases;
}

Tensors flattened(const std::vector<Tensors>& lists) {
  Tensors all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

// gloo has no average: the caller sums and divides.
template <class Options>
bool takes_average(Options& options) {
  if (options.reduceOp != ReduceOp::AVG) return false;
  options.reduceOp = ReduceOp::SUM;
  return true;
}

void divide(Tensors& tensors, int64_t by) {
  for (auto& tensor : tensors) at::isIntegralType(tensor.scalar_type(), true) ? tensor.floor_divide_(by) : tensor.div_(by);
}

// A collective that had ended when it was called.
class EndedWork final : public c10d::Work {
 public:
  EndedWork(int rank, OpType type, Tensors results) : Work(rank, type), results_(std::move(results)) {
    std::vector<c10::Device> devices;
    for (const auto& tensor : results_)
      if (tensor.device().type() == kNPU && std::find(devices.begin(), devices.end(), tensor.device()) == devices.end())
        devices.push_back(tensor.device());
    std::sort(devices.begin(), devices.end(), [](auto a, auto b) { return a.index() < b.index(); });
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices);
    future_->markCompleted(c10::IValue(results_));
    finish();
  }
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
  void synchronize() override {}
  Tensors result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  Tensors results_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// Several sends and receives that batch_isend_irecv hands out as one: waiting for one of them only could wait for ever.
class CoalescedWork final : public c10d::Work {
 public:
  CoalescedWork(int rank, std::vector<WorkPtr> parts) : Work(rank, OpType::COALESCED), parts_(std::move(parts)) {}
  bool wait(std::chrono::milliseconds timeout) override {
    for (auto& part : parts_) part->wait(timeout);
    parts_.clear();
    finish();
    return true;
  }
  bool isCompleted() override {
    return std::all_of(parts_.begin(), parts_.end(), [](auto& part) { return part->isCompleted(); });
  }
  void synchronize() override { wait(kNoTimeout); }

 private:
  std::vector<WorkPtr> parts_;
};

}  // namespace

Hccl::Hccl(c10::intrusive_ptr<c10d::Backend> gloo) : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)) {}

WorkPtr Hccl::done(OpType type, Tensors results) { return c10::make_intrusive<EndedWork>(rank_, type, std::move(results)); }

WorkPtr Hccl::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  auto aliases = on_cpu(tensors);
  gloo_->broadcast(aliases, options)->wait();
  return done(OpType::BROADCAST, tensors);
}

WorkPtr Hccl::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  auto how = options;
  const bool average = takes_average(how);
  auto aliases = on_cpu(tensors);
  gloo_->allreduce(aliases, how)->wait();
  if (average) divide(aliases, size_);
  return done(OpType::ALLREDUCE, tensors);
}

void Hccl::sum_up(at::Tensor& npu, const ReduceOp& op, std::chrono::milliseconds timeout) {
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  options.timeout = timeout;
  Tensors one{npu};
  allreduce(one, options);
}

WorkPtr Hccl::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  for (auto& tensor : tensors) sum_up(tensor, options.reduceOp, options.timeout);
  return done(OpType::ALLREDUCE_COALESCED, tensors);
}

WorkPtr Hccl::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  auto how = options;
  const bool average = takes_average(how);
  auto aliases = on_cpu(tensors);
  gloo_->reduce(aliases, how)->wait();
  if (average && rank_ == options.rootRank) divide(aliases, size_);
  return done(OpType::REDUCE, tensors);
}

WorkPtr Hccl::allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  auto to = on_cpu(outputs);
  auto from = on_cpu(inputs);
  gloo_->allgather(to, from, options)->wait();
  return done(OpType::ALLGATHER, flattened(outputs));
}

WorkPtr Hccl::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  auto to = on_cpu(output), from = on_cpu(input);
  gloo_->_allgather_base(to, from, options)->wait();
  return done(OpType::_ALLGATHER_BASE, {output});
}

WorkPtr Hccl::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  for (size_t i = 0; i < outputs.size(); i++) _allgather_base(outputs[i], inputs[i], options);
  return done(OpType::COALESCED, outputs);
}

WorkPtr Hccl::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  auto to = on_cpu(outputs);
  auto from = on_cpu(inputs);
  gloo_->gather(to, from, options)->wait();
  return done(OpType::GATHER, flattened(outputs));
}

WorkPtr Hccl::scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) {
  auto to = on_cpu(outputs);
  auto from = on_cpu(inputs);
  gloo_->scatter(to, from, options)->wait();
  return done(OpType::SCATTER, outputs);
}

// gloo scatters no reduction on every release of torch: everything is reduced everywhere, and each rank keeps its part.
WorkPtr Hccl::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) {
  Tensors flat;
  for (const auto& part : inputs[0]) flat.push_back(part.reshape({-1}));
  auto all = at::cat(flat);
  sum_up(all, options.reduceOp, options.timeout);
  int64_t offset = 0;
  for (int i = 0; i < rank_; i++) offset += inputs[0][i].numel();
  outputs[0].copy_(all.narrow(0, offset, outputs[0].numel()).view(outputs[0].sizes()));
  return done(OpType::REDUCE_SCATTER, outputs);
}

WorkPtr Hccl::_reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  auto all = input.reshape({-1}).clone();
  sum_up(all, options.reduceOp, options.timeout);
  output.copy_(all.narrow(0, rank_ * output.numel(), output.numel()).view(output.sizes()));
  return done(OpType::_REDUCE_SCATTER_BASE, {output});
}

WorkPtr Hccl::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  for (size_t i = 0; i < outputs.size(); i++) _reduce_scatter_base(outputs[i], inputs[i], options);
  return done(OpType::COALESCED, outputs);
}

WorkPtr Hccl::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                            const c10d::AllToAllOptions& options) {
  auto to = on_cpu(output), from = on_cpu(input);
  gloo_->alltoall_base(to, from, output_splits, input_splits, options)->wait();
  return done(OpType::ALLTOALL_BASE, {output});
}

// gloo has no alltoall of lists: point to point, everything posted before anything is waited for.
WorkPtr Hccl::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions&) {
  constexpr int kTag = 0x484C;  // a tag that callers of send and recv hardly use
  std::vector<WorkPtr> pending;
  for (int other = 0; other < size_; other++) {
    if (other == rank_) {
      outputs[other].copy_(inputs[other]);
      continue;
    }
    Tensors from{on_cpu(inputs[other].contiguous())}, to{on_cpu(outputs[other])};
    pending.push_back(gloo_->send(from, other, kTag));
    pending.push_back(gloo_->recv(to, other, kTag));
  }
  for (auto& work : pending) work->wait();
  return done(OpType::ALLTOALL, outputs);
}

WorkPtr Hccl::point_to_point(WorkPtr work) {
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

WorkPtr Hccl::send(Tensors& tensors, int to, int tag) {
  auto aliases = on_cpu(tensors);
  return point_to_point(gloo_->send(aliases, to, tag));
}

WorkPtr Hccl::recv(Tensors& tensors, int from, int tag) {
  auto aliases = on_cpu(tensors);
  return point_to_point(gloo_->recv(aliases, from, tag));
}

WorkPtr Hccl::recvAnysource(Tensors& tensors, int tag) {
  auto aliases = on_cpu(tensors);
  return point_to_point(gloo_->recvAnysource(aliases, tag));
}

WorkPtr Hccl::barrier(const c10d::BarrierOptions& options) {
  c10d::BarrierOptions how;  // gloo knows nothing of the devices that are named in `options`
  how.timeout = options.timeout;
  gloo_->barrier(how)->wait();
  return done(OpType::BARRIER, {});
}

void Hccl::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) { gloo_->monitoredBarrier(options, wait_all_ranks); }

void Hccl::startCoalescing() {
  coalescing_ = true;
  coalesced_.clear();
}

WorkPtr Hccl::endCoalescing() {
  coalescing_ = false;
  if (coalesced_.empty()) return done(OpType::COALESCED, {});
  return c10::make_intrusive<CoalescedWork>(rank_, std::exchange(coalesced_, {}));
}

}  // namespace sim
