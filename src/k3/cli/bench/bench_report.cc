#include "k3/cli/bench/bench_report.h"

#include <algorithm>
#include <set>

#include "k3/base/units.h"
#include "k3/cli/common.h"

namespace k3::cli {
namespace {

std::string short_number(double value) {
  return value >= 10000 ? format_grouped(static_cast<int64_t>(value + 0.5))
                        : fmt::format("{:.{}f}", value,
                                      value >= 1000  ? 0
                                      : value >= 100 ? 1
                                                     : 2);
}

std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

// The columns. Rates are those of the median repetition.
std::string test_cell(const BenchResult& r) { return r.test.label(); }
std::string threads_cell(const BenchResult& r) { return std::to_string(r.test.threads); }
std::string batch_cell(const BenchResult& r) { return std::to_string(r.test.batch); }
std::string settings_cell(const BenchResult& r) { return r.settings; }
std::string speed_cell(const BenchResult& r) { return short_number(r.tokens_per_second(r.seconds.median())); }
std::string spread_cell(const BenchResult& r) { return "± " + percent(r.seconds.spread()); }
std::string each_cell(const BenchResult& r) {
  return short_number(r.tokens_per_second(r.seconds.median()) / static_cast<double>(r.test.batch));
}
std::string read_cell(const BenchResult& r) { return fmt::format("{:.1f}", r.cost.bytes() / r.seconds.median() / 1e9); }
std::string flops_cell(const BenchResult& r) { return fmt::format("{:.1f}", r.cost.flops() / r.seconds.median() / 1e9); }
std::string share_cell(const BenchResult& r) { return r.share.empty() ? "" : percent(r.share.median()); }
std::string bound_cell(const BenchResult& r) { return r.share.empty() ? "" : r.read_bound ? "read" : r.unit; }
std::string nats_cell(const BenchResult& r) { return r.quality ? fmt::format("{:.4f}", r.quality->nats_per_token) : ""; }
std::string bits_cell(const BenchResult& r) { return r.quality ? fmt::format("{:.4f}", r.quality->bits_per_byte) : ""; }

// On a GPU: a step of decoding, or a whole prompt.
std::string ms_text(double seconds) { return fmt::format("{:.3f}", seconds * 1e3); }
double per_row(const BenchResult& r, double seconds) {
  return r.test.phase == Phase::decode ? seconds / static_cast<double>(r.test.tokens) : seconds;
}
std::string ms_cell(const BenchResult& r) { return ms_text(per_row(r, r.seconds.median())); }
std::string wall_cell(const BenchResult& r) { return ms_text(per_row(r, r.gpu->wall.median())); }
std::string floor_cell(const BenchResult& r) { return ms_text(per_row(r, r.gpu->floor_seconds)); }
std::string ratio_cell(const BenchResult& r) { return fmt::format("{:.2f}", r.seconds.median() / r.gpu->floor_seconds); }
std::string gpu_bound_cell(const BenchResult& r) { return r.read_bound ? "bytes" : "products"; }
std::string experts_cell(const BenchResult& r) {
  return r.gpu->local_experts == 0 ? "" : fmt::format("{:.1f}", r.gpu->experts);
}

std::string gpu_text(const BenchHeading& h) {
  std::string text = fmt::format("copy {:.0f} GB/s, BF16 products {:.0f} TFLOP/s", h.gpu->copy_bytes_per_second / 1e9,
                                 h.gpu->gemm_flops_per_second / 1e12);
  text += fmt::format("; {} of weights in {}", format_bytes(h.gpu->weight_bytes), format_seconds(h.gpu->load_seconds));
  if (h.gpu->pinned_bytes_per_second > 0) {
    const double rate = static_cast<double>(h.gpu->weight_bytes) / h.gpu->load_seconds;
    text += fmt::format(": {:.1f} GB/s, {} of the {:.1f} of a pinned copy", rate / 1e9, percent(rate / h.gpu->pinned_bytes_per_second),
                        h.gpu->pinned_bytes_per_second / 1e9);
  }
  return text + '\n';
}

template <class Field>
bool varies(const std::vector<BenchCase>& cases, const Field& field) {
  return std::any_of(cases.begin(), cases.end(), [&](const BenchCase& c) { return field(c) != field(cases.front()); });
}

// What has no column because it is the same in every row stands here.
std::string heading_text(const BenchHeading& h, const std::vector<BenchCase>& cases) {
  std::string text = fmt::format("{}: {} parameters; {}", h.model, format_count(static_cast<double>(h.parameters)), h.isa);
  const BenchCase& first = cases.front();
  if (!h.gpu && !varies(cases, [](const BenchCase& c) { return c.threads; })) {
    text += fmt::format(", {} thread{}", first.threads, first.threads == 1 ? "" : "s");
  }
  if (!varies(cases, [](const BenchCase& c) { return c.policy; })) text += ", " + first.policy;
  if (h.deterministic) text += ", deterministic";
  if (!h.lossy.empty()) text += ", " + h.lossy;
  text += '\n';
  if (h.gpu) text += gpu_text(h);
  return text +
         fmt::format("a decoded token reads {:.0f} MB and takes {:.2f} GFLOP\n", h.step_bytes / 1e6, h.step_flops / 1e9);
}

std::string stream_text(const BenchCase& test, const StreamFigures& f) {
  std::string text = fmt::format("{}: {:.1f} MB a token from disk at {:.2f} GB/s", test.label(),
                                 f.disk_bytes_per_token / 1e6, f.disk_bytes_per_second / 1e9);
  if (f.direct_bytes_per_second > 0) {
    text += fmt::format(", {} of the disk's own {:.2f}", percent(f.disk_bytes_per_second / f.direct_bytes_per_second),
                        f.direct_bytes_per_second / 1e9);
  }
  return text + fmt::format("; {} of the experts wanted were in memory\n", percent(f.hit_rate));
}

}  // namespace

std::vector<BenchReport::Cell> BenchReport::gpu_cells(const std::vector<BenchCase>& cases) {
  size_t widest = 0;
  for (const BenchCase& c : cases) widest = std::max(widest, c.label().size());
  return {{{"test", static_cast<int>(widest), true}, test_cell},
          {{"batch"}, batch_cell},
          {{"ms", 9}, ms_cell},
          {{"wall ms", 9}, wall_cell, 2},
          {{"tokens/s", 9}, speed_cell},
          {{"spread"}, spread_cell, 3},
          {{"floor ms", 9}, floor_cell},
          {{"ratio", 5}, ratio_cell},
          {{"bound", 8, true}, gpu_bound_cell, 4},
          {{"experts", 7}, experts_cell, 1}};
}

std::vector<BenchReport::Cell> BenchReport::all_cells(const BenchOptions& options, const std::vector<BenchCase>& cases) {
  const bool markdown = options.output == "markdown", all = markdown;
  std::vector<Cell> cells;
  size_t widest = 0;
  for (const BenchCase& c : cases) widest = std::max(widest, c.label().size());
  cells.push_back({{"test", static_cast<int>(widest), true}, test_cell});
  if (all || varies(cases, [](const BenchCase& c) { return c.threads; })) cells.push_back({{"threads"}, threads_cell});
  const bool batches = all || std::any_of(cases.begin(), cases.end(), [](const BenchCase& c) { return c.batch > 1; });
  if (batches) cells.push_back({{"batch"}, batch_cell});
  if (all || varies(cases, [](const BenchCase& c) { return c.policy; })) {
    cells.push_back({{"settings", 8, true}, settings_cell});
  }
  cells.push_back({{"tokens/s"}, speed_cell});
  cells.push_back({{"spread"}, spread_cell, 1});
  if (batches) cells.push_back({{"each"}, each_cell, 3});
  cells.push_back({{"GB/s", 5}, read_cell, 2});
  cells.push_back({{"GFLOP/s"}, flops_cell, 4});
  if (options.ceilings) {
    cells.push_back({{"of floor"}, share_cell});
    cells.push_back({{"bound", 8, true}, bound_cell});
  }
  if (options.quality) {
    cells.push_back({{"nats/token"}, nats_cell});
    cells.push_back({{"bits/byte"}, bits_cell});
  }
  return cells;
}

BenchReport::BenchReport(const BenchOptions& options, BenchHeading heading, const std::vector<BenchCase>& cases,
                         int terminal_width)
    : output_(options.output), heading_(std::move(heading)), cells_(heading_.gpu ? gpu_cells(cases) : all_cells(options, cases)), table_({}) {
  heading_text_ = heading_text(heading_, cases);
  const auto build = [&] {
    std::vector<Column> columns;
    for (const Cell& cell : cells_) columns.push_back(cell.column);
    table_ = TextTable(std::move(columns));
  };
  build();
  while (output_ == "table" && terminal_width > 0 && table_.width() > terminal_width) {
    const auto least =
        std::max_element(cells_.begin(), cells_.end(), [](const Cell& a, const Cell& b) { return a.drop < b.drop; });
    if (least->drop == 0) break;
    dropped_ += (dropped_.empty() ? "" : ", ") + least->column.name;
    cells_.erase(least);
    build();
  }
}

void BenchReport::begin() const {
  if (output_ == "json") return;
  print_out(heading_text_);
  if (!dropped_.empty()) note("left out for the width of this terminal: " + dropped_);
  print_out(output_ == "markdown" ? "\n" + table_.markdown_header() : table_.header());
  flush_out();
}

void BenchReport::add(BenchResult result) {
  if (output_ != "json") {
    std::vector<std::string> row;
    for (const Cell& cell : cells_) row.push_back(cell.text(result));
    print_out(output_ == "markdown" ? table_.markdown_row(row) : table_.row(row));
    flush_out();
  }
  results_.push_back(std::move(result));
}

void BenchReport::finish(const CeilingMeter* ceilings) const {
  if (output_ == "json") return print_json(ceilings);
  for (const BenchResult& r : results_) {
    if (!r.streaming) continue;
    print_out(stream_text(r.test, *r.streaming));
  }
  print_layers();
  if (ceilings != nullptr) print_out((output_ == "markdown" ? "\n" : "") + ceilings->summary());
}

void BenchReport::print_layers() const {
  const bool markdown = output_ == "markdown";
  const TextTable table({{"kind", 15, true}, {"layers"}, {"us a layer", 10}, {"floor us", 9}, {"ratio", 5}, {"ms", 8}, {"bound", 8, true}, {"experts", 7}});
  for (const BenchResult& r : results_) {
    if (r.layers.empty()) continue;
    print_out(fmt::format("\n{}, batch {}: a step by kinds of layers\n{}", r.test.label(), r.test.batch, markdown ? "\n" : ""));
    print_out(markdown ? table.markdown_header() : table.header());
    LayerFigure sum{"sum", 0, 0, 0, 0, false};
    const auto print = [&](const LayerFigure& f) {
      const auto layers = static_cast<double>(std::max<int64_t>(1, f.layers));
      const std::vector<std::string> cells = {f.kind,
                                              f.layers > 0 ? std::to_string(f.layers) : "",
                                              f.layers > 0 ? fmt::format("{:.1f}", f.seconds / layers * 1e6) : "",
                                              f.layers > 0 ? fmt::format("{:.2f}", f.floor_seconds / layers * 1e6) : "",
                                              fmt::format("{:.2f}", f.seconds / f.floor_seconds),
                                              ms_text(f.seconds),
                                              f.layers > 0 ? (f.read_bound ? "bytes" : "products") : "",
                                              f.experts > 0 ? fmt::format("{:.1f}", f.experts) : ""};
      print_out(markdown ? table.markdown_row(cells) : table.row(cells));
    };
    for (const LayerFigure& f : r.layers) {
      print(f);
      sum.seconds += f.seconds;
      sum.floor_seconds += f.floor_seconds;
    }
    print(sum);
  }
}

void BenchReport::write_result(JsonWriter& w, const BenchResult& r) const {
  const double median = r.seconds.median();
  w.begin_object()
      .field("test", r.test.phase == Phase::prefill ? "prefill" : "decode")
      .field("tokens", r.test.tokens)
      .field("depth", r.test.depth)
      .field("batch", r.test.batch)
      .field("threads", r.test.threads)
      .field("policy", r.test.policy)
      .field("settings", r.settings);
  w.field("tokens_per_second", r.tokens_per_second(median))
      .field("tokens_per_second_min", r.tokens_per_second(r.seconds.max()))
      .field("tokens_per_second_max", r.tokens_per_second(r.seconds.min()))
      .field("tokens_per_second_each", r.tokens_per_second(median) / static_cast<double>(r.test.batch))
      .field("seconds_mad", r.seconds.mad());
  w.key("seconds").begin_array();
  for (const double s : r.seconds.values()) w.value(s);
  w.end_array();
  w.field("bytes", r.cost.bytes())
      .field("matrix_flops", r.cost.matrix_flops)
      .field("attention_flops", r.cost.attention_flops)
      .field("recurrence_flops", r.cost.recurrence_flops)
      .field("bytes_per_second", r.cost.bytes() / median)
      .field("flops_per_second", r.cost.flops() / median);
  if (!r.share.empty()) {
    w.field("share_of_floor", r.share.median())
        .field("share_of_floor_min", r.share.min())
        .field("share_of_floor_max", r.share.max())
        .field("bound", r.read_bound ? "read" : r.unit)
        .field("unit", r.unit)
        .field("read_ceiling", r.read_ceiling.median())
        .field("flops_ceiling", r.flops_ceiling.median());
  }
  if (r.quality) {
    w.field("nats_per_token", r.quality->nats_per_token)
        .field("bits_per_byte", r.quality->bits_per_byte)
        .field("quality_tokens", r.quality->tokens);
  }
  if (r.streaming) {
    w.field("disk_bytes_per_token", r.streaming->disk_bytes_per_token)
        .field("disk_bytes_per_second", r.streaming->disk_bytes_per_second)
        .field("direct_bytes_per_second", r.streaming->direct_bytes_per_second)
        .field("hit_rate", r.streaming->hit_rate);
  }
  if (r.gpu) {
    w.field("floor_seconds", r.gpu->floor_seconds)
        .field("ratio_to_floor", median / r.gpu->floor_seconds)
        .field("bound", r.read_bound ? "bytes" : "products")
        .field("step_seconds", r.gpu->steps.median())
        .field("wall_seconds", r.gpu->wall.median())
        .field("experts_touched", r.gpu->experts)
        .field("local_experts", r.gpu->local_experts);
  }
  if (!r.layers.empty()) {
    w.key("layers").begin_array();
    for (const LayerFigure& f : r.layers) {
      w.begin_object()
          .field("kind", f.kind)
          .field("layers", f.layers)
          .field("seconds", f.seconds)
          .field("floor_seconds", f.floor_seconds)
          .field("ratio_to_floor", f.seconds / f.floor_seconds)
          .field("bound", f.read_bound ? "bytes" : "products")
          .field("experts_touched", f.experts)
          .end_object();
    }
    w.end_array();
  }
  w.end_object();
}

void BenchReport::write_gpu(JsonWriter& w) const {
  w.key("gpu")
      .begin_object()
      .field("copy_bytes_per_second", heading_.gpu->copy_bytes_per_second)
      .field("gemm_flops_per_second", heading_.gpu->gemm_flops_per_second)
      .field("weight_bytes", heading_.gpu->weight_bytes)
      .field("load_seconds", heading_.gpu->load_seconds);
  if (heading_.gpu->pinned_bytes_per_second > 0) {
    w.field("load_bytes_per_second", static_cast<double>(heading_.gpu->weight_bytes) / heading_.gpu->load_seconds)
        .field("pinned_bytes_per_second", heading_.gpu->pinned_bytes_per_second);
  }
  w.end_object();
}

void BenchReport::print_json(const CeilingMeter* ceilings) const {
  JsonWriter w;
  w.begin_object()
      .field("model", heading_.model)
      .field("parameters", heading_.parameters)
      .field("active_bytes", heading_.active_bytes)
      .field("isa", heading_.isa)
      .field("deterministic", heading_.deterministic)
      .field("lossy", heading_.lossy);
  if (heading_.gpu) write_gpu(w);
  w.key("results").begin_array();
  for (const BenchResult& r : results_) write_result(w, r);
  w.end_array();
  if (ceilings != nullptr) {
    w.key("ceilings");
    ceilings->write_json(w);
  }
  w.end_object();
  print_out(w.text() + "\n");
}

}  // namespace k3::cli
