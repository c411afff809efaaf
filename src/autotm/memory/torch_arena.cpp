// PyTorch's allocator for CPUs, with arenas: a step's tensors get the places in one piece of memory that its plan states.
//
// Memory that no plan knows of, and memory whose place is still taken, is PyTorch's own allocator's, as before. So no
// order of allocations, whatever it is, lets two tensors share bytes.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace {

struct Place {
  uint64_t bytes, offset;  // What ends behind the arena is not in it.
};

struct Arena {
  char* base;
  uint64_t bytes;
  std::vector<Place> places;           // In the order in which they are allocated.
  std::map<uint64_t, uint64_t> taken;  // Bytes by offset.
  bool is_closed = false;

  bool holds(const void* address) const { return base <= address && address < base + bytes; }

  bool is_free(const Place& place) const {
    if (place.offset >= bytes || place.bytes > bytes - place.offset) return false;
    auto next = taken.lower_bound(place.offset);
    if (next != taken.end() && next->first < place.offset + place.bytes) return false;
    return next == taken.begin() || std::prev(next)->first + std::prev(next)->second <= place.offset;
  }

  ~Arena() { munmap(base, bytes); }
};

// What a recorded call did: bytes and address of an allocation, or 0 bytes and the address of what was freed.
struct Event {
  uint64_t bytes, address;
};

// Tensors are freed by any thread, some when the process ends: these are never destroyed.
auto& mutex = *new std::mutex();
auto& arenas = *new std::vector<std::unique_ptr<Arena>>();
std::atomic<bool> is_any = false;  // Where there is none, what is freed is not looked for in them.

// Of the thread that runs a step: the places that its next operator takes, and what a recorded call did.
thread_local Arena* current = nullptr;
thread_local uint64_t next_place = 0, last_place = 0;
thread_local std::vector<Event>* recorded = nullptr;

at::Allocator* const fallback = c10::GetDefaultCPUAllocator();

// Return the next place of so many bytes, if there is one and it is free; else null.
void* take_place(uint64_t bytes) {
  if (!current) return nullptr;
  std::lock_guard<std::mutex> guard(mutex);
  auto place = current->places.begin() + next_place, last = current->places.begin() + last_place;
  place = std::find_if(place, last, [&](const Place& one) { return one.bytes == bytes; });
  if (place == last) return nullptr;
  next_place = place - current->places.begin() + 1;
  if (!current->is_free(*place)) return nullptr;
  current->taken.emplace(place->offset, bytes);
  return current->base + place->offset;
}

// Free memory of any arena, or of PyTorch's allocator.
void release(void* address) {
  if (!address) return;
  if (is_any) {
    std::lock_guard<std::mutex> guard(mutex);
    auto holder = std::find_if(arenas.begin(), arenas.end(), [&](auto& arena) { return arena->holds(address); });
    if (holder != arenas.end()) {
      (*holder)->taken.erase(static_cast<char*>(address) - (*holder)->base);
      if ((*holder)->is_closed && (*holder)->taken.empty()) arenas.erase(holder);
      return;
    }
  }
  if (recorded) recorded->push_back({0, reinterpret_cast<uint64_t>(address)});
  fallback->raw_deallocate(address);
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* address = bytes ? take_place(bytes) : nullptr;
    if (!address) address = fallback->raw_allocate(bytes);
    if (recorded && bytes) recorded->push_back({bytes, reinterpret_cast<uint64_t>(address)});
    return {address, address, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

}  // namespace

extern "C" {

// Put the allocator in the place of PyTorch's. Returns whether it is; not where another one has a higher priority.
int autotm_install() {
  static Allocator* const allocator = new Allocator();  // PyTorch keeps it for as long as the process runs.
  c10::SetCPUAllocator(allocator, 1);
  return c10::GetCPUAllocator() == allocator;
}

// Reserve an arena with places, two numbers each. Returns it, or null where the system has not so much memory.
Arena* autotm_arena(uint64_t bytes, const uint64_t* places, uint64_t count) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  madvise(base, bytes, MADV_HUGEPAGE);  // A hint; without it pages are small.
  auto arena = std::make_unique<Arena>();
  arena->base = static_cast<char*>(base);
  arena->bytes = bytes;
  for (uint64_t index = 0; index < count; index++) arena->places.push_back({places[2 * index], places[2 * index + 1]});
  std::lock_guard<std::mutex> guard(mutex);
  arenas.push_back(std::move(arena));
  is_any = true;
  return arenas.back().get();
}

const void* autotm_base(const Arena* arena) { return arena->base; }

// Begin a step of this thread: what it allocates from now on is in the arena, at the places that `autotm_places` names.
void autotm_enter(Arena* arena) {
  current = arena;
  next_place = last_place = 0;
  c10::profiledCPUMemoryReporter().New(arena->base, arena->bytes);  // The profiler counts the arena as a whole.
}

// Name the places that are allocated next, in this order: [first, last).
void autotm_places(uint64_t first, uint64_t last) {
  next_place = first;
  last_place = last;
}

void autotm_leave() {
  c10::profiledCPUMemoryReporter().Delete(current->base);
  current = nullptr;
}

// Give an arena back, once the last tensor in it is freed.
void autotm_close(Arena* arena) {
  std::lock_guard<std::mutex> guard(mutex);
  arena->is_closed = true;
  if (!arena->taken.empty()) return;
  auto is_it = [&](auto& one) { return one.get() == arena; };
  arenas.erase(std::find_if(arenas.begin(), arenas.end(), is_it));
}

// Return to the system what the C library keeps of memory that was freed, as far as it can.
void autotm_trim() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

// Record what this thread allocates and frees, until `autotm_recorded`.
void autotm_record() { recorded = new std::vector<Event>(); }

// Return how many events were recorded; where there is room for so many, write them, two numbers each, and end the record.
uint64_t autotm_recorded(uint64_t* events, uint64_t room) {
  if (!recorded) return 0;
  uint64_t count = recorded->size();
  if (count > room) return count;
  for (const Event& event : *recorded) {
    *events++ = event.bytes;
    *events++ = event.address;
  }
  delete recorded;
  recorded = nullptr;
  return count;
}

}  // extern "C"
