//! Lines behind a prefix that a syslog daemon or a container runtime has written.

/// The messages that a line may have behind a prefix such as `<134>1 2026-03-02T08:00:00Z host app 7 - - ` or `Mar 2
/// 08:00:00 host app[7]: `, or `2026-03-02T08:00:00Z stdout F `. Empty if the line does not begin with such a prefix.
pub(super) fn messages(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    /// A tag ends with a colon, but the text behind it may contain colons, too.
    const MOST: usize = 3;
    let is_prefixed = begins_as_prefix(line);
    // Text that clients send is behind the first quotation mark.
    let end = memchr::memchr(b'"', line).unwrap_or(line.len());
    let words = line.strip_prefix(b"<").and_then(|_| {
        let mut spaces = memchr::memchr_iter(b' ', &line[..end]);
        spaces.nth(6).map(|at| &line[at + 1..])
    });
    // The container runtime of Kubernetes.
    let stream = [&b" stdout F "[..], b" stderr F "].into_iter().find_map(|stream| {
        let at = memchr::memmem::find(&line[..end], stream)?;
        Some(&line[at + stream.len()..])
    });
    let tags = memchr::memmem::find_iter(&line[..end], ": ").take(MOST).map(|at| &line[at + 2..]);
    tags.chain(words).chain(stream).filter(move |_| is_prefixed)
}

fn begins_as_prefix(line: &[u8]) -> bool {
    let is_month = |begin: &[u8]| {
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
            .iter()
            .any(|month| month.as_bytes() == begin)
    };
    match line {
        [b'<', digit, ..] => digit.is_ascii_digit(),
        [one, two, three, b' ', ..] if is_month(&[*one, *two, *three]) => true,
        year if year.len() > 10 => {
            year[..4].iter().all(u8::is_ascii_digit) && year[4] == b'-' && matches!(year[10], b'T' | b' ')
        }
        _ => false,
    }
}
