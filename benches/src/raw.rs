//! All unsafe code: measurements need it, and the standard library does not offer it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The system's allocator, which counts while it is told to.
struct Counting;

static COUNTS: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count() {
    if COUNTS.load(Ordering::Relaxed) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: all calls are passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        unsafe { System.dealloc(block, layout) }
    }
}

/// How often `work` allocates, or grows an allocation.
pub fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    COUNTS.store(true, Ordering::Relaxed);
    work();
    COUNTS.store(false, Ordering::Relaxed);
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

/// Writes `bytes` over a string of equal length.
#[inline]
pub fn overwrite(text: &mut str, bytes: &[u8; 20]) {
    debug_assert!(bytes.is_ascii());
    // SAFETY: the one caller writes ASCII.
    unsafe { text.as_bytes_mut() }.copy_from_slice(bytes);
}

/// Whether [`wait_for_all_before`] works, and [`ticks`] come from a processor counter.
pub const PRECISE: bool = cfg!(target_arch = "x86_64");

/// Lets nothing behind it begin before all in front of it has ended.
#[inline(always)]
pub fn wait_for_all_before() {
    #[cfg(target_arch = "x86_64")]
    #[allow(unused_unsafe)]
    // SAFETY: every x86-64 processor has it.
    unsafe {
        std::arch::x86_64::_mm_lfence();
    }
    // This orders only memory, so an isolated decision may seem too cheap.
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// A clock that costs little; see [`nanos_per_tick`].
#[inline(always)]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    #[allow(unused_unsafe)]
    // SAFETY: every x86-64 processor has it.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        START.get_or_init(std::time::Instant::now).elapsed().as_nanos() as u64
    }
}

/// Measured against the system's clock.
pub fn nanos_per_tick() -> f64 {
    let (instant, before) = (std::time::Instant::now(), ticks());
    std::thread::sleep(std::time::Duration::from_millis(50));
    let (nanos, after) = (instant.elapsed().as_nanos(), ticks());
    nanos as f64 / (after - before) as f64
}
