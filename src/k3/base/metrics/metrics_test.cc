#include "k3/base/metrics/metrics.h"

#include <gmock/gmock.h>

namespace k3 {
namespace {

using testing::HasSubstr;

TEST(Metrics, TextOfEveryKind) {
  MetricsText metrics;
  metrics.counter("k3:things_total", "Things.", 3);
  metrics.gauge("k3:pages", "Pages.", 2, {{"kind", "mla"}});
  metrics.gauge("k3:pages", "Pages.", 5, {{"kind", "kda"}});
  metrics.histogram("k3:wait_seconds", "Waits.", {0.1, 1}, {2, 0, 1}, 7.5);
  const std::string text = metrics.text();
  EXPECT_THAT(text, HasSubstr("# HELP k3:things_total Things.\n# TYPE k3:things_total counter\nk3:things_total 3\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE k3:pages gauge\nk3:pages{kind=\"mla\"} 2\nk3:pages{kind=\"kda\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("k3:wait_seconds_count 3\n"));
  EXPECT_THAT(text, HasSubstr("k3:wait_seconds_sum 7.5\n"));
  EXPECT_THAT(text, HasSubstr("k3:wait_seconds_bucket{le=\"0.1\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("k3:wait_seconds_bucket{le=\"+Inf\"} 3\n"));
}

TEST(Metrics, AnEmptyHistogramStillHasItsLastBucket) {
  MetricsText metrics;
  metrics.histogram("x", "X.", {}, {0}, 0);
  EXPECT_THAT(metrics.text(), HasSubstr("x_bucket{le=\"+Inf\"} 0\n"));
}

}  // namespace
}  // namespace k3
