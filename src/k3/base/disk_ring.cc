// The io_uring backend of DiskReader: one thread owns the ring, keeps `depth` pieces in the kernel and sleeps in between.
// Whoever adds work writes to an eventfd that the ring reads too.
#include "k3/base/disk_engine.h"

#if K3_LIBURING

#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace k3::disk {

class Engine::Ring {
 public:
  explicit Ring(Engine& engine) : engine_(engine), slots_(static_cast<size_t>(engine.options().depth)) {}
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  ~Ring() {
    if (thread_.joinable()) {
      wake();
      thread_.join();
    }
    if (ready_) io_uring_queue_exit(&ring_);
    if (wake_fd_ >= 0) ::close(wake_fd_);
  }

  Status start() {
    const int error = io_uring_queue_init(static_cast<unsigned>(slots_.size()) + 1, &ring_, 0);
    if (error < 0) return fail(Code::unavailable, "the kernel gives no io_uring: {}", std::strerror(-error));
    ready_ = true;
    wake_fd_ = ::eventfd(0, EFD_CLOEXEC);
    if (wake_fd_ < 0) return fail(Code::unavailable, "the kernel gives no eventfd: {}", std::strerror(errno));
    for (size_t i = slots_.size(); i-- > 0;) free_.push_back(i);
    try {
      thread_ = std::thread([this] { run(); });
    } catch (const std::system_error& e) {
      return fail(Code::unavailable, "no thread for io_uring: {}", e.what());
    }
    return {};
  }

  void wake() {
    const uint64_t one = 1;
    while (::write(wake_fd_, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
  }

 private:
  static constexpr uint64_t kWake = UINT64_MAX;

  void read_wakes() {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    io_uring_prep_read(sqe, wake_fd_, &wakes_, sizeof(wakes_), 0);
    io_uring_sqe_set_data64(sqe, kWake);
  }

  void read_piece(size_t slot) {
    const Piece& piece = slots_[slot];
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    io_uring_prep_read(sqe, piece.request->file->fd, piece.at + piece.done, static_cast<unsigned>(piece.bytes - piece.done),
                       static_cast<uint64_t>(piece.offset + piece.done));
    io_uring_sqe_set_data64(sqe, slot);
  }

  void run() {
    read_wakes();
    for (;;) {
      while (!free_.empty() && engine_.take(slots_[free_.back()])) {
        read_piece(free_.back());
        free_.pop_back();
      }
      if (free_.size() == slots_.size() && engine_.stopping()) return;
      // At most one entry a slot and one for the wakes: the ring has room for all, so a failure here is a signal.
      const int submitted = io_uring_submit_and_wait(&ring_, 1);
      K3_CHECK(submitted >= 0 || submitted == -EINTR || submitted == -EAGAIN || submitted == -EBUSY, "io_uring: {}",
               std::strerror(-submitted));
      io_uring_cqe* cqe = nullptr;
      while (io_uring_peek_cqe(&ring_, &cqe) == 0) {
        const uint64_t slot = io_uring_cqe_get_data64(cqe);
        const int64_t result = cqe->res;
        io_uring_cqe_seen(&ring_, cqe);
        if (slot == kWake) {
          read_wakes();
        } else if (engine_.advance(slots_[slot], result) == Progress::again) {
          read_piece(slot);
        } else {
          free_.push_back(slot);
        }
      }
    }
  }

  Engine& engine_;
  io_uring ring_{};
  bool ready_ = false;
  int wake_fd_ = -1;
  uint64_t wakes_ = 0;
  std::vector<Piece> slots_;  // in the kernel, or free
  std::vector<size_t> free_;
  std::thread thread_;
};

Status Engine::start_ring() {
  std::unique_ptr<Ring, RingDelete> ring(new Ring(*this));
  K3_TRY(ring->start());
  ring_ = std::move(ring);
  return {};
}

void Engine::wake_ring() { ring_->wake(); }
void Engine::RingDelete::operator()(Ring* ring) const { delete ring; }

}  // namespace k3::disk

#else

namespace k3::disk {

class Engine::Ring {};

Status Engine::start_ring() { return fail(Code::unavailable, "this build has no io_uring"); }
void Engine::wake_ring() {}
void Engine::RingDelete::operator()(Ring* ring) const { delete ring; }

}  // namespace k3::disk

#endif
