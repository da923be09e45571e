#include "k3/cli/bench/ceilings.h"

#include <algorithm>
#include <thread>

#include "k3/base/memory.h"
#include "k3/base/numa/topology.h"
#include "k3/base/progress.h"
#include "k3/base/units.h"
#include "k3/cli/bench/text_table.h"
#include "k3/cli/common.h"

namespace k3::cli {
namespace {

// Of one sample. Short enough to stand between repetitions, long enough for the clock to rise and a thread to wake.
constexpr double kReadSeconds = 0.04, kFlopsSeconds = 0.02;
constexpr int kSurveySamples = 5;

std::string rate_text(bool read, double rate) {
  return read ? fmt::format("{:.1f} GB/s", rate / 1e9) : fmt::format("{:.0f} GFLOP/s", rate / 1e9);
}

std::string threads_text(int threads) { return fmt::format("{} thread{}", threads, threads == 1 ? "" : "s"); }

}  // namespace

std::string CeilingKind::label() const {
  if (read) return "read";
  std::string text(ops::unit_name(unit));
  if (unit == ops::Unit::fp32_fma) text += " " + std::string(ops::isa_name(isa));
  return text;
}

std::vector<CeilingKind> ceiling_kinds(ops::Isa isa) {
  std::vector<CeilingKind> kinds = {{.read = true, .isa = isa}};
  for (const ops::Isa level : {ops::Isa::scalar, ops::Isa::avx2, ops::Isa::avx512}) {
    if (level <= isa) kinds.push_back({.unit = ops::Unit::fp32_fma, .isa = level});
  }
  for (const ops::Unit unit : {ops::Unit::bf16_dot, ops::Unit::bf16_tile}) {
    if (ops::has_unit(unit, isa)) kinds.push_back({.unit = unit, .isa = isa});
  }
  return kinds;
}

Result<CeilingMeter> CeilingMeter::create(ThreadPool& pool, ops::Isa isa) {
  const int64_t bytes = ops::read_buffer_bytes(last_level_cache_bytes(), available_memory_bytes());
  K3_TRY_ASSIGN(Storage buffer, ops::make_read_buffer(pool, bytes));
  return CeilingMeter(std::move(buffer), isa);
}

double CeilingMeter::sample(ThreadPool& pool, const CeilingKind& kind) {
  const double rate = kind.read ? ops::measure_read(pool, buffer_.bytes(), kind.isa, kReadSeconds)
                                : ops::measure_flops(pool, kind.unit, kind.isa, kFlopsSeconds);
  samples_[pool.size()][kind.label()].add(rate);
  return rate;
}

CeilingMoment CeilingMeter::moment(ThreadPool& pool, ops::Unit unit) {
  // Levels above AVX-512 have the FP32 unit of AVX-512, and its name.
  const ops::Isa level = unit == ops::Unit::fp32_fma ? std::min(isa_, ops::Isa::avx512) : isa_;
  return {sample(pool, {.read = true, .isa = isa_}), sample(pool, {.unit = unit, .isa = level})};
}

void CeilingMeter::survey(ThreadPool& pool, int samples) {
  for (int i = 0; i < samples; ++i) {
    for (const CeilingKind& kind : ceiling_kinds(isa_)) sample(pool, kind);
  }
}

std::vector<int> CeilingMeter::threads() const {
  std::vector<int> counts;
  for (const auto& [count, unused] : samples_) counts.push_back(count);
  return counts;
}

const Samples* CeilingMeter::find(int threads, const std::string& label) const {
  const auto by_label = samples_.find(threads);
  if (by_label == samples_.end()) return nullptr;
  const auto found = by_label->second.find(label);
  return found == by_label->second.end() ? nullptr : &found->second;
}

namespace {

TextTable ceiling_table(const CeilingMeter& meter) {
  std::vector<Column> columns = {{"ceiling", 12, true}};
  for (const int threads : meter.threads()) {
    columns.push_back({threads_text(threads), 13, false});
    columns.push_back({"spread", 6, false});
  }
  return TextTable(std::move(columns));
}

std::vector<std::vector<std::string>> ceiling_rows(const CeilingMeter& meter) {
  std::vector<std::vector<std::string>> rows;
  for (const CeilingKind& kind : ceiling_kinds(meter.isa())) {
    std::vector<std::string> row = {kind.label()};
    for (const int threads : meter.threads()) {
      const Samples* samples = meter.find(threads, kind.label());
      row.push_back(samples == nullptr ? "" : rate_text(kind.read, samples->median()));
      row.push_back(samples == nullptr ? "" : fmt::format("{:.0f} %", 100 * samples->spread()));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

std::string CeilingMeter::table() const {
  const TextTable table = ceiling_table(*this);
  std::string text = table.header();
  for (const auto& row : ceiling_rows(*this)) text += table.row(row);
  return text;
}

std::string CeilingMeter::markdown() const {
  const TextTable table = ceiling_table(*this);
  std::string text = table.markdown_header();
  for (const auto& row : ceiling_rows(*this)) text += table.markdown_row(row);
  return text;
}

void CeilingMeter::write_json(JsonWriter& w) const {
  w.begin_array();
  for (const auto& [threads, by_label] : samples_) {
    w.begin_object().field("threads", threads).key("rates").begin_array();
    for (const CeilingKind& kind : ceiling_kinds(isa_)) {
      const Samples* samples = find(threads, kind.label());
      if (samples == nullptr) continue;
      w.begin_object()
          .field("name", kind.label())
          .field("unit", kind.read ? "bytes/s" : "flops/s")
          .field("isa", std::string(ops::isa_name(kind.isa)))
          .field("median", samples->median())
          .field("min", samples->min())
          .field("max", samples->max())
          .field("samples", static_cast<int64_t>(samples->values().size()))
          .end_object();
    }
    w.end_array().end_object();
  }
  w.end_array();
}

std::string CeilingMeter::summary() const {
  std::string text;
  for (const int threads : this->threads()) {
    text += fmt::format("ceilings, {}:", threads_text(threads));
    const char* comma = "";
    for (const CeilingKind& kind : ceiling_kinds(isa_)) {
      const Samples* samples = find(threads, kind.label());
      if (samples == nullptr) continue;
      text += fmt::format("{} {} {} ± {:.0f} %", comma, kind.label(), rate_text(kind.read, samples->median()),
                          100 * samples->spread());
      comma = ",";
    }
    text += '\n';
  }
  return text;
}

Status ceiling_command(const BenchOptions& options) {
  const std::vector<int> counts = options.threads.empty() ? std::vector<int>{available_threads()} : options.threads;
  const ops::Isa isa = options.compute.isa == "auto" ? ops::detect_isa() : *ops::isa_from_name(options.compute.isa);
  if (isa > ops::detect_isa()) {
    return fail(Code::unsupported, "this processor has no {}; the best it has is {}", ops::isa_name(isa),
                ops::isa_name(ops::detect_isa()));
  }
  const auto widest = make_pool(*std::max_element(counts.begin(), counts.end()));
  K3_TRY_ASSIGN(CeilingMeter meter, CeilingMeter::create(*widest, isa));
  Progress bar("ceilings", static_cast<int64_t>(counts.size()) * kSurveySamples, "rounds");
  int64_t done = 0;
  for (int round = 0; round < kSurveySamples;
       ++round) {  // rounds outside: what disturbs a moment disturbs one sample of each
    for (const int count : counts) {
      const auto pool = make_pool(count);
      meter.survey(*pool, 1);
      bar.update(++done);
    }
  }
  bar.finish();
  if (options.output == "json") {
    JsonWriter w;
    w.begin_object()
        .field("isa", std::string(ops::isa_name(isa)))
        .field("cores", static_cast<int64_t>(available_threads()))
        .field("cache_bytes", last_level_cache_bytes())
        .field("buffer_bytes", meter.buffer_bytes())
        .key("ceilings");
    meter.write_json(w);
    w.end_object();
    print_out(w.text() + "\n");
    return {};
  }
  print_out(fmt::format("{}, {} usable; read buffer {}, last-level cache {}\n{}", ops::isa_name(isa),
                        threads_text(available_threads()), format_bytes(meter.buffer_bytes()),
                        format_bytes(last_level_cache_bytes()), options.output == "markdown" ? "\n" : ""));
  print_out(options.output == "markdown" ? meter.markdown() : meter.table());
  return {};
}

}  // namespace k3::cli
