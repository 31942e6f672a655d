//! `Forwarded` (RFC 7239): as for `x_forwarded_for`, with commas in quoted strings.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tower_sluice_fuzz::forwarding::Case;

fuzz_target!(|data: &[u8]| {
    if let Some(case) = Case::new("forwarded", data) {
        case.check(split);
    }
});

/// Splits from the left, by the RFC's grammar. A backslash is valid only in a quoted string.
fn split(line: &[u8]) -> Option<Vec<&[u8]>> {
    let (mut elements, mut start, mut quoted, mut escaped) = (Vec::new(), 0, false, false);
    for (at, byte) in line.iter().enumerate() {
        match (byte, quoted, escaped) {
            (_, _, true) => escaped = false,
            (b'\\', true, _) => escaped = true,
            (b'\\', false, _) => return None,
            (b'"', _, _) => quoted = !quoted,
            (b',', false, _) => {
                elements.push(&line[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    elements.push(&line[start..]);
    (!quoted).then_some(elements)
}
