// AXI4 memory behind one manager of the design, with a stated timing model and protocol checks.
//
// Timing: a read burst's first beat leaves `latency` cycles after its address was accepted, further
// beats follow one a cycle; each cycle in which a beat could leave is lost with probability
// `stall_percent`. Bursts come back in order. At most `outstanding` read bursts are accepted.
// Writes are taken one beat a cycle with the same stalls; the response follows after `latency`.
#pragma once
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

namespace card {

// xorshift64*: small, fast, and the same on every machine.
class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull | 1) {}
    uint64_t next() {
        state_ ^= state_ >> 12;
        state_ ^= state_ << 25;
        state_ ^= state_ >> 27;
        return state_ * 0x2545F4914F6CDD1Dull;
    }
    bool percent(uint32_t chance) { return chance && (next() >> 32) % 100 < chance; }

  private:
    uint64_t state_;
};

struct Timing {
    uint32_t latency = 64;
    uint32_t stall_percent = 5;
    uint32_t outstanding = 16;
};

// What the checks found; the first violation is kept in words.
struct Violations {
    uint64_t count = 0;
    std::string first;
    void add(const std::string& text) {
        if (count++ == 0) first = text;
    }
};

constexpr uint8_t kOkay = 0, kSlaveError = 2, kDecodeError = 3;

// A flat byte array at `base`; anything else answers with a decode error.
class Storage {
  public:
    Storage(uint64_t base, uint64_t size) : base_(base), bytes_(size) {}
    void poison(uint64_t seed) {
        Random random(seed);
        for (size_t i = 0; i + 8 <= bytes_.size(); i += 8) {
            const uint64_t value = random.next();
            std::memcpy(&bytes_[i], &value, 8);
        }
    }
    bool holds(uint64_t address, uint64_t size) const {
        return address >= base_ && address - base_ + size <= bytes_.size();
    }
    uint8_t* at(uint64_t address) { return &bytes_[address - base_]; }
    uint64_t base() const { return base_; }
    uint64_t size() const { return bytes_.size(); }
    uint8_t* data() { return bytes_.data(); }

  private:
    uint64_t base_;
    std::vector<uint8_t> bytes_;
};

// Ports is a struct of pointers to the Verilated model's signals (see card.cpp). All members are
// evaluated once a cycle: `sample` before the clock edge, `drive` after it.
template <typename Ports>
class AxiMemory {
  public:
    AxiMemory(std::string name, Ports ports, uint32_t word, Storage& storage, Timing timing,
              uint64_t seed, Violations& violations)
        : name_(std::move(name)), p_(ports), word_(word), storage_(storage), timing_(timing),
          random_(seed), violations_(violations), beat_(word), held_w_(word) {}

    // Looks at the handshakes of the cycle that ends now.
    void sample(uint64_t now) {
        check_stability();
        if (*p_.arvalid && *p_.arready) accept_read(now);
        if (*p_.rvalid && *p_.rready) {
            r_valid_ = false;
            ++words_read;
        }
        if (*p_.awvalid && *p_.awready) accept_write();
        if (*p_.wvalid && *p_.wready) accept_beat(now);
        if (*p_.bvalid && *p_.bready) b_valid_ = false;
    }

    // Sets this memory's outputs for the next cycle.
    void drive(uint64_t now) {
        const bool stalled = stall_until_ > now;
        *p_.arready = !dead && reads_.size() < timing_.outstanding;
        *p_.awready = !dead && writes_.size() < timing_.outstanding;
        if (!r_valid_ && !reads_.empty() && !stalled && !dead) next_beat(now);
        *p_.rvalid = r_valid_;
        *p_.wready = !dead && !stalled && !writes_.empty() && writes_.front().left > 0 &&
                     !random_.percent(timing_.stall_percent);
        if (!b_valid_ && !responses_.empty() && responses_.front().due <= now && !dead) {
            *p_.bresp = responses_.front().resp;
            *p_.bid = responses_.front().id;
            responses_.pop_front();
            b_valid_ = true;
        }
        *p_.bvalid = b_valid_;
    }

    void stall(uint64_t until) { stall_until_ = until; }
    void fail_reads(uint64_t after_words) { fail_read_at_ = words_read + after_words; }
    void fail_writes(uint64_t after_words) { fail_write_at_ = words_written + after_words; }

    // Forgets what is in flight, as a reset of the whole card does.
    void clear() {
        reads_.clear();
        writes_.clear();
        responses_.clear();
        r_valid_ = b_valid_ = false;
        held_ar_ = held_aw_ = held_w_valid_ = false;
    }

    bool dead = false;  // answers nothing any more
    uint64_t words_read = 0;
    uint64_t words_written = 0;

  private:
    struct Read {
        uint64_t address, due;
        uint32_t left, id;
    };
    struct Write {
        uint64_t address;
        uint32_t left, id;
        uint8_t resp;
    };
    struct Response {
        uint64_t due;
        uint32_t id;
        uint8_t resp;
    };

    void complain(const char* what, uint64_t address) {
        char text[160];
        std::snprintf(text, sizeof text, "%s: %s at address 0x%llx", name_.c_str(), what,
                      static_cast<unsigned long long>(address));
        violations_.add(text);
    }

    void check_burst(uint64_t address, uint32_t beats, uint32_t size, uint32_t burst) {
        if (address % word_) complain("address is not aligned to the word", address);
        if ((1u << size) != word_) complain("beat size is not the word", address);
        if (burst != 1) complain("burst type is not INCR", address);
        if ((address ^ (address + uint64_t(beats) * word_ - 1)) >> 12)
            complain("burst crosses a 4 KiB line", address);
    }

    // A valid address or beat that was not accepted must not change or go away.
    void check_stability() {
        if (held_ar_ && (!*p_.arvalid || *p_.araddr != held_araddr_ || *p_.arlen != held_arlen_))
            complain("read address changed before it was accepted", held_araddr_);
        if (held_aw_ && (!*p_.awvalid || *p_.awaddr != held_awaddr_ || *p_.awlen != held_awlen_))
            complain("write address changed before it was accepted", held_awaddr_);
        if (held_w_valid_ && (!*p_.wvalid || std::memcmp(p_.wdata, held_w_.data(), word_)))
            complain("write beat changed before it was accepted", 0);
        held_ar_ = *p_.arvalid && !*p_.arready;
        held_araddr_ = *p_.araddr;
        held_arlen_ = *p_.arlen;
        held_aw_ = *p_.awvalid && !*p_.awready;
        held_awaddr_ = *p_.awaddr;
        held_awlen_ = *p_.awlen;
        held_w_valid_ = *p_.wvalid && !*p_.wready;
        if (held_w_valid_) std::memcpy(held_w_.data(), p_.wdata, word_);
    }

    void accept_read(uint64_t now) {
        check_burst(*p_.araddr, *p_.arlen + 1u, *p_.arsize, *p_.arburst);
        reads_.push_back({*p_.araddr, now + timing_.latency, *p_.arlen + 1u, *p_.arid});
    }

    void next_beat(uint64_t now) {
        Read& read = reads_.front();
        if (read.due > now || random_.percent(timing_.stall_percent)) return;
        uint8_t resp = kOkay;
        if (!storage_.holds(read.address, word_)) {
            resp = kDecodeError;
            std::memset(beat_.data(), 0xEE, word_);
        } else {
            std::memcpy(beat_.data(), storage_.at(read.address), word_);
        }
        if (words_read >= fail_read_at_) {
            resp = kSlaveError;
            fail_read_at_ = ~0ull;
        }
        std::memcpy(p_.rdata, beat_.data(), word_);
        *p_.rresp = resp;
        *p_.rid = read.id;
        *p_.rlast = read.left == 1;
        read.address += word_;
        if (--read.left == 0) reads_.pop_front();
        r_valid_ = true;
    }

    void accept_write() {
        check_burst(*p_.awaddr, *p_.awlen + 1u, *p_.awsize, *p_.awburst);
        writes_.push_back({*p_.awaddr, *p_.awlen + 1u, *p_.awid, kOkay});
    }

    void accept_beat(uint64_t now) {
        Write& write = writes_.front();
        const uint64_t full = word_ == 64 ? ~0ull : (1ull << word_) - 1;
        if (uint64_t(*p_.wstrb) != full) complain("write strobes are sparse", write.address);
        if (bool(*p_.wlast) != (write.left == 1)) complain("WLAST is misplaced", write.address);
        if (!storage_.holds(write.address, word_)) write.resp = kDecodeError;
        if (words_written >= fail_write_at_) {
            write.resp = kSlaveError;
            fail_write_at_ = ~0ull;
        }
        if (write.resp == kOkay) std::memcpy(storage_.at(write.address), p_.wdata, word_);
        write.address += word_;
        ++words_written;
        if (--write.left == 0) {
            responses_.push_back({now + timing_.latency, write.id, write.resp});
            writes_.pop_front();
        }
    }

    std::string name_;
    Ports p_;
    uint32_t word_;
    Storage& storage_;
    Timing timing_;
    Random random_;
    Violations& violations_;
    std::deque<Read> reads_;
    std::deque<Write> writes_;
    std::deque<Response> responses_;
    std::vector<uint8_t> beat_, held_w_;
    bool r_valid_ = false, b_valid_ = false;
    bool held_ar_ = false, held_aw_ = false, held_w_valid_ = false;
    uint64_t held_araddr_ = 0, held_awaddr_ = 0;
    uint32_t held_arlen_ = 0, held_awlen_ = 0;
    uint64_t stall_until_ = 0;
    uint64_t fail_read_at_ = ~0ull, fail_write_at_ = ~0ull;
};

}  // namespace card
