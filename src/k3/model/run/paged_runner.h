// Purpose:  feeds a model sequences whose caches lie in pages of a pool that someone else manages.
// Shapes:   a page is page_bytes long; PagedLayout says where each layer's part of it lies.
// Units:    tokens, bytes.
// Memory:   the pool belongs to the caller; pages named by an input are read and written by the step.
// Threads:  one thread.
// Errors:   step: invalid_argument for ids outside the vocabulary; those of Stepper::run (the pages of the inputs then hold
//           half a step: their sequences cannot go on). Page numbers are the caller's invariant.
// Source:   serving.md 2, 3.2 (checkpoints are written inside the pass).
#pragma once

#include <span>
#include <vector>

#include "k3/format/config.h"
#include "k3/model/run/stepper.h"

namespace k3 {

struct PagedLayout {
  struct Layer {
    int32_t group = -1;  // of KDA pages; -1: MLA
    int64_t offset = 0;  // bytes from the start of a page
  };
  std::byte* pool = nullptr;
  int64_t page_bytes = 0, page_tokens = 0;
  DType state = DType::f32, conv = DType::f32, latent = DType::f32;
  int64_t conv_offset = 0;  // bytes from a KDA layer's recurrent to its conv state
  std::vector<Layer> layers;
};

// One layer group and offset a model layer: MLA layers and KDA layers are numbered in model order; group_layers are the KDA
// layers of each group.
std::vector<PagedLayout::Layer> place_layers(const Config& config, std::span<const int64_t> group_layers,
                                             int64_t latent_layer_bytes, int64_t kda_layer_stride);

struct PagedExport {
  int64_t tokens = 0;              // of this input, 1 ..
  std::span<const int32_t> pages;  // one a KDA group
};

struct PagedInput {
  std::span<const int32_t> tokens;
  int64_t history = 0;                   // tokens in the pages before this step
  std::span<const int32_t> block_table;  // MLA pages, room for history + tokens
  std::span<const int32_t> state_pages;  // one a KDA group
  std::span<const PagedExport> exports = {};
  WantLogits logits = WantLogits::last;
  RowChoice choice = {};  // of its rows of logits, where can_choose()
};

class PagedRunner {
 public:
  // limits: of steps on a GPU.
  static Result<PagedRunner> create(const Model& model, ThreadPool& pool, const ComputeMode& mode, const PagedLayout& layout,
                                    const StepLimits& limits = {});

  // Another pool of the same layout, before any step that is not thrown away.
  void set_pool(std::byte* pool) {
    layout_.pool = pool;
    stepper_.forget_graphs();
  }
  // On a GPU: scratch becomes one piece, as large as the steps so far needed. Before the first step of single tokens.
  Status settle_scratch();
  Stream stream() { return stepper_.ctx().stream; }
  int64_t scratch_bytes() { return stepper_.ctx().workspace->peak_bytes(); }

  // One forward over all inputs; the logits rows in order, valid until the next call.
  Result<Tensor> step(std::span<const PagedInput> inputs);
  bool can_choose() const { return stepper_.can_choose(); }
  std::span<const ops::cuda::ChosenRow> chosen() const { return stepper_.chosen(); }  // of the last step: Stepper::chosen
  int64_t most_tokens() const { return stepper_.most_tokens(); }
  int64_t most_rows() const { return stepper_.most_rows(); }

 private:
  PagedRunner(Stepper stepper, const PagedLayout& layout) : stepper_(std::move(stepper)), layout_(layout) {}
  void make_views(std::span<const PagedInput> inputs);

  Stepper stepper_;
  PagedLayout layout_;
  FlatStep flat_;
  std::vector<std::vector<int32_t>> slots_;                 // [group][sequence]
  std::vector<std::vector<ops::StateExport>> exports_;      // [group]
  std::vector<std::vector<ops::PagedKv>> pages_;            // [layer][sequence]
  std::vector<LayerCache> caches_;
};

}  // namespace k3
