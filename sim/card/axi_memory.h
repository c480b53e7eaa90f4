// AXI4 memory behind one manager of the design, with a stated timing model and protocol checks.
//
// Timing: a read burst's first beat leaves `latency` cycles after its address was accepted, further
// beats follow one a cycle; each cycle in which a beat could leave is lost with probability
// `stall_percent`. Bursts come back in order. At most `outstanding` read bursts are accepted.
// Writes are taken one beat a cycle with the same stalls; the response follows after `latency`.
#pragma once
#include <cstdint>
#include <cstdio>
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
        return address >= base_ && size <= bytes_.size() && address - base_ <= bytes_.size() - size;
    }
    uint8_t* at(uint64_t address) { return &bytes_[address - base_]; }
    uint64_t size() const { return bytes_.size(); }
    uint8_t* data() { return bytes_.data(); }

  private:
    uint64_t base_;
    std::vector<uint8_t> bytes_;
};

// Pointers to the signals of one AXI4 port; `Address` and `Strobe` are the model's types for them.
template <typename Address, typename Strobe>
struct AxiPorts {
    uint8_t *arvalid, *arready, *arid, *arlen, *arsize, *arburst;
    Address* araddr;
    uint8_t *rvalid, *rready, *rid, *rresp, *rlast, *rdata;
    uint8_t *awvalid, *awready, *awid, *awlen, *awsize, *awburst;
    Address* awaddr;
    uint8_t *wvalid, *wready, *wlast, *wdata;
    Strobe* wstrb;
    uint8_t *bvalid, *bready, *bid, *bresp;
};

// All members are evaluated once a cycle: `sample` before the clock edge, `drive` after it.
template <typename Ports>
class AxiMemory {
  public:
    AxiMemory(std::string name, Ports ports, uint32_t word, Storage& storage, Timing timing,
              uint64_t seed, Violations& violations)
        : name_(std::move(name)), p_(ports), word_(word), storage_(storage), timing_(timing),
          random_(seed), violations_(violations), held_w_(word) {}

    // Looks at the handshakes of the cycle that ends now.
    void sample(uint64_t now) {
        check_address(*p_.arvalid, *p_.arready, *p_.araddr, *p_.arlen, held_ar_, "read");
        check_address(*p_.awvalid, *p_.awready, *p_.awaddr, *p_.awlen, held_aw_, "write");
        check_beat();
        if (*p_.arvalid && *p_.arready) accept_read(now);
        if (r_valid_ && *p_.rready) {
            r_valid_ = false;
            ++words_read;
        }
        if (*p_.awvalid && *p_.awready) accept_write();
        if (*p_.wvalid && *p_.wready) accept_beat(now);
        if (b_valid_ && *p_.bready) {
            b_valid_ = false;
            ++bursts_answered;
        }
    }

    // Sets this memory's outputs for the next cycle.
    void drive(uint64_t now) {
        const bool awake = !dead && stall_until_ <= now;
        *p_.arready = awake && reads_.size() < timing_.outstanding;
        *p_.awready = awake && writes_.size() < timing_.outstanding;
        if (!r_valid_ && !reads_.empty() && awake) next_beat(now);
        *p_.rvalid = r_valid_;
        *p_.wready = awake && !writes_.empty() && !random_.percent(timing_.stall_percent);
        if (!b_valid_ && !responses_.empty() && awake && responses_.front().due <= now) {
            *p_.bresp = responses_.front().resp;
            *p_.bid = responses_.front().id;
            responses_.pop_front();
            b_valid_ = true;
        }
        *p_.bvalid = b_valid_;
    }

    void stall(uint64_t until) { stall_until_ = until; }
    void fail_read(uint64_t after_words) { fail_read_at_ = words_read + after_words; }
    void fail_write(uint64_t after_words) { fail_write_at_ = words_written + after_words; }

    // Forgets what is in flight, as a reset of the whole card does.
    void clear() {
        reads_.clear();
        writes_.clear();
        responses_.clear();
        r_valid_ = b_valid_ = false;
        held_ar_.valid = held_aw_.valid = held_w_valid_ = false;
        *p_.rvalid = *p_.bvalid = *p_.arready = *p_.awready = *p_.wready = 0;
    }

    bool dead = false;  // answers nothing any more
    uint64_t words_read = 0;
    uint64_t words_written = 0;
    uint64_t bursts_answered = 0;

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
    struct Held {
        bool valid = false;
        uint64_t address = 0;
        uint32_t length = 0;
    };

    void complain(const std::string& what, uint64_t address) {
        char text[32];
        std::snprintf(text, sizeof text, " at address 0x%llx", (unsigned long long)address);
        violations_.add(name_ + ": " + what + text);
    }

    void check_burst(uint64_t address, uint32_t beats, uint32_t size, uint32_t burst) {
        if (address % word_) complain("address is not aligned to the word", address);
        if ((1u << size) != word_) complain("beat size is not the word", address);
        if (burst != 1) complain("burst type is not INCR", address);
        if ((address ^ (address + uint64_t(beats) * word_ - 1)) >> 12)
            complain("burst crosses a 4 KiB line", address);
    }

    // A valid address that was not accepted must not change or go away.
    void check_address(bool valid, bool ready, uint64_t address, uint32_t length, Held& held,
                       const char* what) {
        if (held.valid && (!valid || address != held.address || length != held.length))
            complain(std::string(what) + " address changed before it was accepted", held.address);
        held.valid = valid && !ready;
        held.address = address;
        held.length = length;
    }

    void check_beat() {
        if (held_w_valid_ && (!*p_.wvalid || std::memcmp(p_.wdata, held_w_.data(), word_)))
            complain("write beat changed before it was accepted", 0);
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
        if (storage_.holds(read.address, word_)) {
            std::memcpy(p_.rdata, storage_.at(read.address), word_);
        } else {
            resp = kDecodeError;
            std::memset(p_.rdata, 0xEE, word_);
        }
        if (words_read >= fail_read_at_) {
            resp = kSlaveError;
            fail_read_at_ = ~0ull;
        }
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
    std::vector<uint8_t> held_w_;
    bool r_valid_ = false, b_valid_ = false, held_w_valid_ = false;
    Held held_ar_, held_aw_;
    uint64_t stall_until_ = 0;
    uint64_t fail_read_at_ = ~0ull, fail_write_at_ = ~0ull;
};

}  // namespace card
