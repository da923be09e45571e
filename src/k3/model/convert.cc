#include "k3/model/convert.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "k3/model/init.h"
#include "k3/model/params.h"
#include "k3/model/summary.h"
#include "k3/ops/int8/int8.h"
#include "k3/ops/mxfp4/mxfp4.h"

namespace k3 {
namespace {

using Bytes = std::vector<std::byte>;

uint8_t* u8(Bytes& bytes) { return reinterpret_cast<uint8_t*>(bytes.data()); }

// What happens to one stored tensor.
enum class Action { pass, recast, quantise, dequantise, quantise_int8, dequantise_int8, drop };

struct Source {
  std::string name;
  TensorInfo info;
  Action action = Action::pass;
  ParamTensor identity;  // layer and expert, so that an expert stays in one shard
};

struct Work {
  std::vector<Source> sources;
  std::vector<ParamTensor> outputs;
};

bool ends_with(std::string_view text, std::string_view tail) { return text.ends_with(tail); }

// Stored name -> table row, for what the table knows; everything else passes through.
std::unordered_map<std::string, ParamTensor> known_tensors(const Config& config) {
  std::unordered_map<std::string, ParamTensor> known;
  for_each_tensor(config, [&](const ParamTensor& t) { known.emplace(t.name, t); });
  return known;
}

// What --trunk does to a tensor of the trunk.
Action trunk_action(const Source& source, const ParamTensor& known, const Config& config, DType wanted) {
  const bool scales = known.params == 0;  // of an 8-bit trunk
  if (wanted == DType::i8) {
    return source.info.dtype != DType::i8 && !scales && may_be_int8(*known.family, config) ? Action::quantise_int8
                                                                                           : Action::pass;
  }
  if (scales) return Action::drop;
  if (source.info.dtype == DType::i8) return Action::dequantise_int8;
  return wanted != source.info.dtype ? Action::recast : Action::pass;
}

Action action_of(const Source& source, const ParamTensor* known, const Config& config, const ConvertOptions& options) {
  if (known == nullptr) return Action::pass;
  const bool expert = known->family->store == ParamStore::expert;
  if (expert) {
    const bool packed = source.info.dtype == DType::u8;
    if (options.experts == ConvertOptions::Experts::mxfp4 && !packed) return Action::quantise;
    if (options.experts == ConvertOptions::Experts::bf16 && packed) {
      return ends_with(source.name, "_scale") ? Action::drop : Action::dequantise;
    }
    return Action::pass;
  }
  const bool trunk = known->family->store == ParamStore::bf16;
  return trunk && options.trunk ? trunk_action(source, *known, config, *options.trunk) : Action::pass;
}

// Of the text model; the loader is as strict. A_log has several released shapes, I8 alone could mean any scheme.
Status check_stored(const Checkpoint& checkpoint, const Source& source, const ParamTensor& known, const Config& config) {
  const Component component = known.family->component;
  if (component == Component::vision_tower || component == Component::projector) return {};
  if (source.info.dtype == DType::i8 && !(config.trunk_int8 && may_be_int8(*known.family, config))) {
    return fail(Code::corrupt, "{}: tensor '{}' is I8, {}", checkpoint.shard_file(source.info.shard), source.name,
                config.trunk_int8 ? "which it cannot be" : "but the config has no trunk_quantization");
  }
  if (known.family->id == ParamId::kda_a_log || source.info.dims == known.dims) return {};
  return fail(Code::corrupt, "{}: tensor '{}' has shape [{}], the config asks for [{}]",
              checkpoint.shard_file(source.info.shard), source.name, fmt::join(source.info.dims, ", "),
              fmt::join(known.dims, ", "));
}

void plan_outputs(const Source& s, const ConvertOptions& options, std::vector<ParamTensor>& outputs) {
  ParamTensor out = s.identity;
  out.name = s.name;
  out.dims = s.info.dims;
  out.dtype = s.info.dtype;
  switch (s.action) {
    case Action::drop: return;
    case Action::pass: break;
    case Action::recast:
    case Action::dequantise_int8: out.dtype = *options.trunk; break;
    case Action::quantise_int8:
      out.dtype = DType::i8;
      outputs.push_back(out);
      out.dtype = DType::u8;
      out.name = s.name + "_scale";
      out.dims = {s.info.dims[0], s.info.dims[1] / ops::kInt8Group};
      break;
    case Action::quantise: {
      out.dtype = DType::u8;
      out.name = s.name + "_packed";
      out.dims = {s.info.dims[0], s.info.dims[1] / 2};
      outputs.push_back(out);
      out.name = s.name + "_scale";
      out.dims = {s.info.dims[0], s.info.dims[1] / 32};
      break;
    }
    case Action::dequantise:
      out.dtype = DType::bf16;
      out.name = s.name.substr(0, s.name.size() - std::string_view("_packed").size());
      out.dims = {s.info.dims[0], s.info.dims[1] * 2};
      break;
  }
  outputs.push_back(out);
}

Result<Work> plan(const Checkpoint& checkpoint, const Config& config, const ConvertOptions& options) {
  const auto known = known_tensors(config);
  Work work;
  std::vector<std::string> names;
  checkpoint.for_each_name([&](std::string_view name, int32_t) { names.emplace_back(name); });
  for (std::string& name : names) {
    Source source;
    K3_TRY_ASSIGN(source.info, checkpoint.find(name));
    const auto row = known.find(name);
    if (row != known.end()) source.identity = row->second;
    source.name = std::move(name);
    if (row != known.end()) K3_TRY(check_stored(checkpoint, source, row->second, config));
    source.action = action_of(source, row == known.end() ? nullptr : &row->second, config, options);
    if (source.action == Action::quantise && source.info.dims[1] % 32 != 0) {
      return fail(Code::invalid_argument,
                  "tensor '{}': its input width is not a multiple of 32, so it cannot be packed as MXFP4", source.name);
    }
    work.sources.push_back(std::move(source));
  }
  // In file order: neighbours stay neighbours and the disk is read forward.
  std::stable_sort(work.sources.begin(), work.sources.end(), [](const Source& a, const Source& b) {
    return std::pair(a.info.shard, a.info.offset) < std::pair(b.info.shard, b.info.offset);
  });
  for (const Source& source : work.sources) plan_outputs(source, options, work.outputs);
  return work;
}

Status as_floats(const Checkpoint& checkpoint, const Source& s, std::vector<float>& out) {
  Bytes stored(static_cast<size_t>(s.info.size_bytes));
  K3_TRY(checkpoint.read(s.name, s.info, stored));
  if (s.info.dtype != DType::bf16 && s.info.dtype != DType::f16 && s.info.dtype != DType::f32) {
    return fail(Code::unsupported, "tensor '{}': cannot convert from {}", s.name, dtype_name(s.info.dtype));
  }
  out.resize(static_cast<size_t>(s.info.count()));
  convert_to_float(stored.data(), s.info.dtype, s.info.count(), out.data());
  return {};
}

Status write_quantised(const Checkpoint& checkpoint, const Source& s, CheckpointWriter& writer) {
  std::vector<float> values;
  K3_TRY(as_floats(checkpoint, s, values));
  const int64_t rows = s.info.dims[0], cols = s.info.dims[1];
  Bytes packed(static_cast<size_t>(rows * cols / 2)), scales(static_cast<size_t>(rows * cols / 32));
  K3_TRY(ops::mxfp4_quantise(values.data(), rows, cols, u8(packed), u8(scales)).with_context("tensor '" + s.name + "'"));
  K3_TRY(writer.append(s.name + "_packed", packed));
  return writer.append(s.name + "_scale", scales);
}

Status write_dequantised(const Checkpoint& checkpoint, const Source& s, CheckpointWriter& writer) {
  const std::string base = s.name.substr(0, s.name.size() - std::string_view("_packed").size());
  K3_TRY_ASSIGN(const TensorInfo scale_info, checkpoint.find(base + "_scale"));
  Bytes packed(static_cast<size_t>(s.info.size_bytes)), scales(static_cast<size_t>(scale_info.size_bytes));
  K3_TRY(checkpoint.read(s.name, s.info, packed));
  K3_TRY(checkpoint.read(base + "_scale", scale_info, scales));
  const int64_t rows = s.info.dims[0], cols = s.info.dims[1] * 2;
  if (scale_info.dims != std::vector<int64_t>{rows, cols / 32}) {
    return fail(Code::corrupt, "tensor '{}_scale' does not fit its codes", base);
  }
  K3_TRY(check_scales(checkpoint.shard_file(scale_info.shard), base + "_scale", scales, cols / 32));
  std::vector<float> values(static_cast<size_t>(rows * cols));
  ops::mxfp4_dequantise(ops::Isa::scalar, u8(packed), u8(scales), rows, cols, values.data());
  Bytes out(values.size() * 2);
  convert_from_float(values.data(), DType::bf16, rows * cols, out.data());  // exact: model.md 2.5
  return writer.append(base, out);
}

Status write_int8(const Checkpoint& checkpoint, const Source& s, CheckpointWriter& writer) {
  std::vector<float> values;
  K3_TRY(as_floats(checkpoint, s, values));
  const int64_t rows = s.info.dims[0], cols = s.info.dims[1];
  Bytes codes(static_cast<size_t>(rows * cols)), scales(static_cast<size_t>(rows * cols / ops::kInt8Group));
  K3_TRY(ops::int8_quantise(values.data(), rows, cols, reinterpret_cast<int8_t*>(codes.data()), u8(scales))
             .with_context("tensor '" + s.name + "'"));
  K3_TRY(writer.append(s.name, codes));
  return writer.append(s.name + "_scale", scales);
}

// Passes bytes on in pieces, so that a tensor of many GiB needs no such buffer.
Status pass_through(const Checkpoint& checkpoint, const Source& s, CheckpointWriter& writer) {
  constexpr int64_t kPiece = int64_t{64} << 20;
  if (s.info.size_bytes == 0) return writer.append(s.name, {});
  Bytes piece;
  for (int64_t at = 0; at < s.info.size_bytes; at += kPiece) {
    piece.resize(static_cast<size_t>(std::min(kPiece, s.info.size_bytes - at)));
    K3_TRY(checkpoint.read_range(s.name, s.info, at, piece));
    K3_TRY(writer.append(s.name, piece));
  }
  return {};
}

Status int8_as_floats(const Checkpoint& checkpoint, const Source& s, std::vector<float>& out) {
  const int64_t rows = s.info.dims[0], cols = s.info.dims[1];
  K3_TRY_ASSIGN(const TensorInfo scale_info, checkpoint.find(s.name + "_scale"));
  if (scale_info.dtype != DType::u8 || scale_info.dims != std::vector<int64_t>{rows, cols / ops::kInt8Group}) {
    return fail(Code::corrupt, "tensor '{}_scale' does not fit its codes", s.name);
  }
  Bytes codes(static_cast<size_t>(s.info.size_bytes)), scales(static_cast<size_t>(scale_info.size_bytes));
  K3_TRY(checkpoint.read(s.name, s.info, codes));
  K3_TRY(checkpoint.read(s.name + "_scale", scale_info, scales));
  if (std::find(scales.begin(), scales.end(), std::byte{255}) != scales.end()) {
    return fail(Code::corrupt, "tensor '{}_scale' has a scale byte of 255, which is no number", s.name);
  }
  out.resize(codes.size());
  ops::int8_dequantise(reinterpret_cast<const int8_t*>(codes.data()), u8(scales), rows, cols, out.data());
  return {};
}

Status write_recast(const Checkpoint& checkpoint, const Source& s, DType dtype, CheckpointWriter& writer) {
  std::vector<float> values;
  K3_TRY(s.action == Action::dequantise_int8 ? int8_as_floats(checkpoint, s, values) : as_floats(checkpoint, s, values));
  if (dtype == DType::f16) {
    constexpr float kOver = 65520.0F;  // the least magnitude that rounds to infinity
    const auto bad = std::find_if(values.begin(), values.end(), [](float v) { return !(std::abs(v) < kOver); });
    if (bad != values.end()) {
      return fail(Code::invalid_argument, "tensor '{}': value {} at index {} does not fit F16 (largest magnitude 65504)",
                  s.name, *bad, bad - values.begin());
    }
  }
  Bytes out(values.size() * static_cast<size_t>(dtype_bytes(dtype)));
  convert_from_float(values.data(), dtype, static_cast<int64_t>(values.size()), out.data());
  return writer.append(s.name, out);
}

}  // namespace

Result<ConvertReport> convert_checkpoint(const Checkpoint& source, const Config& config, const std::string& folder,
                                         const ConvertOptions& options, const LoadProgress& progress) {
  K3_TRY(check_sizes(config));
  K3_TRY_ASSIGN(const Work work, plan(source, config, options));
  ConvertReport report;
  for (const Source& s : work.sources) report.source_bytes += s.info.size_bytes;
  for (const ParamTensor& t : work.outputs) report.written_bytes += t.size_bytes();
  K3_TRY_ASSIGN(CheckpointWriter writer,
                CheckpointWriter::create(folder, shard_plan(work.outputs, options.shards.value_or(source.shard_count()))));
  int64_t done = 0;
  for (const Source& s : work.sources) {
    switch (s.action) {
      case Action::drop: break;
      case Action::pass: K3_TRY(pass_through(source, s, writer)); break;
      case Action::quantise_int8: K3_TRY(write_int8(source, s, writer)); break;
      case Action::dequantise_int8:
      case Action::recast: K3_TRY(write_recast(source, s, *options.trunk, writer)); break;
      case Action::quantise: K3_TRY(write_quantised(source, s, writer)); break;
      case Action::dequantise: K3_TRY(write_dequantised(source, s, writer)); break;
    }
    ++report.tensors;
    report.passed_through += s.action == Action::pass ? 1 : 0;
    report.recast += s.action == Action::recast ? 1 : 0;
    report.quantised += s.action == Action::quantise || s.action == Action::quantise_int8 ? 1 : 0;
    report.dequantised += s.action == Action::dequantise || s.action == Action::dequantise_int8 ? 1 : 0;
    done += s.info.size_bytes;
    if (progress) progress(done, report.source_bytes);
  }
  K3_TRY(writer.finish());
  return report;
}

}  // namespace k3
