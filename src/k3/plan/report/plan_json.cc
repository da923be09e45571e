#include "k3/plan/report/plan_json.h"

#include "k3/base/json_writer.h"
#include "k3/plan/advise/advice.h"

namespace k3::plan {
namespace {

void write_layout(JsonWriter& w, const Layout& l) {
  w.begin_object()
      .field("text", layout_text(l))
      .field("tp", l.tp)
      .field("dp", l.dp)
      .field("pp", l.pp)
      .field("dcp", l.dcp)
      .field("kcp", l.kcp);
  w.field("moe", l.moe == MoeSharding::ep ? "ep" : "tp").field("sp", l.sp).field("up_sharded", l.up_sharded).end_object();
}

void write_point(JsonWriter& w, const UserPoint& p, bool priced) {
  w.begin_object().field("users", p.users).field("ttft_p50_seconds", p.ttft_p50).field("ttft_p95_seconds", p.ttft_p95);
  w.field("tpot_p50_seconds", p.tpot_p50).field("tpot_p95_seconds", p.tpot_p95).field("step_seconds", p.step_seconds);
  w.field("total_seconds", p.total_seconds).field("prefill_share", p.prefill_share);
  w.field("user_tokens_per_second", p.user_tokens_per_second()).field("output_tokens_per_second", p.output_per_second);
  w.field("tokens_per_second_gpu", p.tokens_per_second_gpu).field("output_tokens_per_second_gpu", p.output_per_second_gpu);
  w.field("gpu_hours_per_million_tokens", p.gpu_hours_per_million())
      .field("gpu_hours_per_million_output_tokens", p.gpu_hours_per_million_output());
  if (priced)
    w.field("cost_per_million_tokens", p.cost_per_million)
        .field("cost_per_million_output_tokens", p.cost_per_million_output);
  w.field("meets_objective", p.meets).end_object();
}

void write_capacity(JsonWriter& w, const Capacity& c) {
  w.begin_object()
      .field("fits", c.fits && c.requests > 0)
      .field("memory_bytes", c.memory_bytes)
      .field("weights_bytes", c.weights_bytes);
  w.field("reserved_bytes", c.reserved_bytes).field("extra_bytes", c.extra_bytes).field("free_bytes", c.free_bytes);
  w.field("per_request_bytes", c.per_request_bytes)
      .field("requests", c.requests)
      .field("tokens_if_one", c.tokens_if_one)
      .end_object();
}

void write_band(JsonWriter& w, const Band& band) {
  w.begin_object().field("low", band.low).field("high", band.high).field("source", band.source).end_object();
}

template <class Parts>
void write_parts(JsonWriter& w, const Parts& parts) {
  w.begin_object();
  for (const NamedPart& named : parts) {
    w.key(named.name)
        .begin_object()
        .field("seconds", named.part.seconds)
        .field("bytes", named.part.bytes)
        .field("flops", named.part.flops)
        .end_object();
  }
  w.end_object();
}

void write_chosen(JsonWriter& w, const Scenario& s, const LayoutAnswer& chosen) {
  const bool priced = s.gpu_hour > 0;
  w.begin_object().key("layout");
  write_layout(w, chosen.layout);
  w.key("capacity");
  write_capacity(w, chosen.capacity);
  w.key("point");
  chosen.point ? write_point(w, *chosen.point, priced) : static_cast<void>(w.null());
  w.key("ladder").begin_array();
  for (const UserPoint& p : chosen.ladder) write_point(w, p, priced);
  w.end_array();
  const int64_t users = chosen.point ? chosen.point->users : 1;
  w.key("decode_parts");
  write_parts(w, decode_of(s, chosen.layout, users).parts());
  w.key("prefill_parts");
  write_parts(w, prefill_of(s, chosen.layout, prefill_batch_requests(s, chosen.layout, users)).parts());
  if (chosen.point) {
    const Bindings b = bindings_of(s, chosen);
    w.key("binds")
        .begin_object()
        .field("decode", b.decode.what)
        .field("decode_share", b.decode.share)
        .field("prefill", b.prefill.what);
    w.field("prefill_share", b.prefill.share).field("memory_stops_users", b.memory_stops_users).end_object();
    if (s.draft.tokens > 0) {
      const DraftEffect e = draft_effect(s, chosen.layout, chosen.point->users);
      w.key("speculation")
          .begin_object()
          .field("plain_step_seconds", e.plain_step_seconds)
          .field("step_seconds", e.step_seconds);
      w.field("tokens_per_step", e.tokens_per_step).field("times_as_fast", e.speed);
      w.field("pays_from_tokens_per_step", e.break_even.tokens_per_step).key("pays_from_acceptance");
      e.break_even.alpha ? w.value(*e.break_even.alpha) : w.null();
      w.end_object();
    }
    w.key("next").begin_array();
    for (const Change& change : next_changes(s, chosen)) {
      w.begin_object()
          .field("what", change.what)
          .field("gain", change.gain)
          .field("meets_objective", change.meets)
          .key("layout");
      write_layout(w, change.answer.layout);
      w.key("point");
      write_point(w, *change.answer.point, false);
      w.end_object();
    }
    w.end_array();
  }
  w.end_object();
}

void write_missing(JsonWriter& w, const Missing& m) {
  w.begin_object().field("bytes", m.bytes).key("layout");
  write_layout(w, m.layout);
  w.key("capacity");
  write_capacity(w, m.capacity);
  w.key("nearest").begin_array();
  for (const Nearest& near : m.nearest) {
    w.begin_object()
        .field("what", near.what)
        .field("gpus", near.scenario.gpus)
        .field("hw", near.scenario.machine.hw.name)
        .key("layout");
    write_layout(w, near.answer.layout);
    w.field("requests", near.answer.capacity.requests).end_object();
  }
  w.end_array().end_object();
}

void write_scenario(JsonWriter& w, const Scenario& s) {
  w.begin_object().field("model", s.model).field("hw", s.machine.hw.name).field("gpus", s.gpus);
  w.field("parameters", s.counts.modules.total_params()).field("weight_bytes", s.counts.modules.total_bytes());
  w.field("active_parameters", s.counts.active_params());
  w.field("input_tokens", s.load.input_tokens)
      .field("output_tokens", s.load.output_tokens)
      .field("users", s.load.users)
      .field("hit", s.load.hit);
  w.field("state_bytes", s.precision.state).field("latent_bytes", s.precision.cache).field("slots", s.slots);
  w.field("draft_tokens", s.draft.tokens);
  if (s.draft.tokens > 0) w.field("tokens_per_step", s.draft.acceptance.at(s.draft.tokens, s.load.mean_context()));
  w.field("objective_ttft_seconds", s.objective.ttft_seconds).field("objective_tpot_seconds", s.objective.tpot_seconds);
  w.field("gpu_hour", s.gpu_hour).key("band");
  write_band(w, s.band);
  w.key("cells").begin_object();
  for (const CellInfo& cell : cells(s.machine)) w.field(cell.name, cell.value);
  w.end_object().end_object();
}

void write_calibration(JsonWriter& w, const Calibration& c) {
  w.begin_object().key("factors").begin_array();
  for (const CalibrationFactor& f : c.factors)
    w.begin_object().field("constant", f.constant).field("before", f.before).field("after", f.after).end_object();
  w.end_array().key("points").begin_array();
  for (const CalibrationRow& row : c.rows) {
    w.begin_object().field("name", row.point.name).field("seconds", row.point.seconds).field("spread", row.point.spread);
    w.field("before", row.before)
        .field("after", row.after)
        .field("unseen", row.unseen)
        .field("moved", row.moved)
        .field("moved_by", row.moved_by)
        .end_object();
  }
  w.end_array().end_object();
}

void write_plan(JsonWriter& w, const Plan& plan) {
  w.begin_object().key("scenario");
  write_scenario(w, plan.scenario);
  w.field("layouts_tried", static_cast<int64_t>(plan.answer.layouts.size()));
  if (const LayoutAnswer* const chosen = plan.chosen()) {
    w.key("answer");
    write_chosen(w, plan.scenario, *chosen);
    w.key("frontier").begin_array();
    for (const FrontierPoint& f : frontier(plan.answer)) {
      w.begin_object().key("layout");
      write_layout(w, f.layout);
      w.key("point");
      write_point(w, f.point, plan.scenario.gpu_hour > 0);
      w.end_object();
    }
    w.end_array();
  }
  if (plan.chosen() == nullptr || !plan.chosen()->point) {
    w.key("missing");
    write_missing(w, missing_of(plan.scenario, plan.answer));
  }
  if (plan.calibration != nullptr) {
    w.key("calibration");
    write_calibration(w, *plan.calibration);
  }
  w.end_object();
}

void write_summary(JsonWriter& w, std::string_view name, const ErrorSummary& s) {
  w.key(name)
      .begin_object()
      .field("rows", s.rows)
      .field("mean_error", s.mean)
      .field("median_error", s.median)
      .field("lowest", s.lowest)
      .field("highest", s.highest);
  w.key("covers");
  write_band(w, s.covers);
  w.key("middle_80_percent");
  write_band(w, s.most);
  w.end_object();
}

}  // namespace

std::string plan_json(const Plan& plan, const Plan* against) {
  JsonWriter w;
  if (against == nullptr) {
    write_plan(w, plan);
    return w.text() + "\n";
  }
  w.begin_object().key("plan");
  write_plan(w, plan);
  w.key("against");
  write_plan(w, *against);
  w.end_object();
  return w.text() + "\n";
}

std::string check_json(const Check& check) {
  JsonWriter w;
  w.begin_object().key("rows").begin_array();
  for (const CheckRow& row : check.rows) {
    const Measurement& m = row.measurement;
    w.begin_object()
        .field("name", m.name)
        .field("source", m.source)
        .field("hw", m.hw)
        .field("quantity", quantity_name(m.quantity));
    w.field("measured", m.measured)
        .field("model", row.predicted)
        .field("error", row.error)
        .field("scored", m.scored())
        .field("fitted", m.fitted);
    w.field("assumed", m.assumed).field("note", m.note).end_object();
  }
  w.end_array();
  write_summary(w, "scored", check.scored);
  write_summary(w, "out_of_sample", check.out_of_sample);
  write_summary(w, "fitted", check.fitted);
  w.end_object();
  return w.text() + "\n";
}

std::string cells_json(const Machine& machine) {
  JsonWriter w;
  w.begin_object().field("name", machine.hw.name).field("source", machine.source).key("cells").begin_array();
  for (const CellInfo& cell : cells(machine)) {
    w.begin_object()
        .field("cell", cell.name)
        .field("value", cell.value)
        .field("least", cell.least)
        .field("most", cell.most)
        .field("meaning", cell.about)
        .end_object();
  }
  w.end_array().end_object();
  return w.text() + "\n";
}

}  // namespace k3::plan
