// Purpose:  one replica of a fleet: its engines, and the events between them in order of time.
// Shapes:   one engine, or prefill and decode engines between which requests are handed over.
// Units:    seconds, tokens.
// Memory:   its engines and events; records belong to the caller, each is written by the cell that has the request.
// Threads:  one at a time; cells do not share anything that they write.
// Errors:   open: what an engine says.
// Source:   serving.md 4, 9. An engine takes what has arrived when a step begins, as the real one does; the one whose clock
// is behind
//           steps first, so that nobody gets anything from the past.
#pragma once

#include <memory>
#include <queue>
#include <span>
#include <unordered_map>
#include <vector>

#include "k3/plan/sim/sim_engine.h"

namespace k3::plan {

class Cell {
 public:
  // affinity: of each request, which engine of several should have it.
  Cell(const SimScenario& scenario, const Workload& workload, std::span<const uint64_t> affinity, int32_t number,
       std::vector<SimRecord>& records);

  ~Cell();  // what its engines still hold ends unheard: records may be gone
  Cell(const Cell&) = delete;
  Cell& operator=(const Cell&) = delete;

  Status open();
  void start_at(int32_t request, double seconds);              // unless the duration is over then
  void restart_at(int32_t request, double seconds);            // had started, or was to, on another replica
  void line_up(int32_t request) { line_.push_back(request); }  // closed loops
  void start_users(int64_t users);                             // that many begin with what stands in line
  void follow_recording();                                     // SimPacing::recorded_order

  void run(double until);  // all that begins before it

  // The replica is lost, with its caches, at this time or when the step under way has ended; what it would have done
  // elsewhere before `back` goes to the caller. Its engines begin anew.
  struct Orphan {
    int32_t request = 0;
    double seconds = 0;  // when it can start
    bool in_line = false;
  };
  Result<std::vector<Orphan>> fail(double seconds, double back);

  void close(SimSummary* sums, bool lost = false);     // adds what its engines counted
  const SimSeries& series() const { return series_; }  // of all its engines, once closed
  const std::string& refusal() const { return refusal_; }

 private:
  // hands_over: its prefill is done, and `engine` begins to send it. handed_over: `engine` has it all.
  enum class EventKind : uint8_t { hands_over, handed_over, arrives };
  struct Event {
    double seconds = 0;
    int32_t request = 0;
    EventKind kind = EventKind::arrives;
    int32_t engine = -1;
    bool operator>(const Event& o) const {
      if (seconds != o.seconds) return seconds > o.seconds;
      return kind != o.kind ? kind > o.kind : request > o.request;
    }
  };
  struct Step {  // of a recording
    double seconds = 0;
    int kind = 0;  // 0: ended, 1: first token, 2: starts
    int32_t request = 0;
  };

  const SimRequest& request(int32_t index) const { return workload_.requests[static_cast<size_t>(index)]; }
  SimRecord& record(int32_t index) { return records_[static_cast<size_t>(index)]; }
  SimEngine& engine_for(int32_t index, SimEngine::Role role);
  void deliver();
  void arrive(int32_t index, double seconds);
  void queue(SimEngine& engine, int32_t index, double seconds, double cost);
  void fill(SimEngine& engine);
  void submit(SimEngine& engine, int32_t index);
  Request make_request(SimEngine& engine, int32_t index);
  void admitted(SimEngine& engine, int32_t index, const Admitted& found);
  void settle(SimEngine& engine, int32_t index);
  void first_token(SimEngine& engine, int32_t index);
  void done(SimEngine& engine, int32_t index, const RequestSummary& summary);
  void hand_over(const Event& event);
  int32_t number_of(const SimEngine& engine) const;
  void finish(int32_t index, double seconds, SimOutcome outcome);
  void follow(int32_t index, double seconds);
  void replay();
  double horizon(const SimEngine& engine, double until) const;
  double cost_of(SimEngine& engine, int32_t index) const;

  const SimScenario& scenario_;
  const Workload& workload_;
  std::span<const uint64_t> affinity_;
  int32_t number_;
  std::vector<SimRecord>& records_;
  std::vector<std::unique_ptr<SimEngine>> engines_;
  std::vector<double> link_free_;  // of each prefill engine
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::deque<int32_t> line_;
  std::vector<Step> script_;
  size_t script_at_ = 0;
  std::unordered_map<int32_t, double> costs_;  // of prefills that budgets count
  bool over_ = false;                          // nothing that engines say counts any more
  bool deaf_ = false;                          // what engines say while they are torn down
  SimSeries series_;
  SimSummary lost_;  // counts of engines that were lost
  std::string refusal_;
};

}  // namespace k3::plan
