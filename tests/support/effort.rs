//! How many random cases, thread rounds and seeds a test runs.

/// Returns `few` in `scripts/test`, and `many` with `FULL_TESTS=1` in the environment, as in `scripts/slow`, which
/// builds these tests with optimisation. Sanitizers, under which code is some twenty times slower, and
/// `scripts/stress`, which runs the whole test many times, get a quarter of `few`.
pub(crate) fn rounds(few: usize, many: usize) -> usize {
    if cfg!(sluice_sanitizer) || std::env::var_os("STRESS").is_some() {
        few.div_ceil(4)
    } else if std::env::var_os("FULL_TESTS").is_some() {
        many
    } else {
        few
    }
}
