//! Plain and hostile lines.

use std::io::Cursor;
use std::net::IpAddr;

use proptest::prelude::*;

use super::{Entry, Format, LONGEST_LINE, Line, Parser, Source, Unreadable};
use crate::cases::cases;

fn parse(line: &str) -> Result<Entry<'_>, Unreadable> {
    parse_as("auto", line)
}

fn parse_as<'a>(format: &str, line: &'a str) -> Result<Entry<'a>, Unreadable> {
    let entry = Parser::new(format.parse().unwrap()).parse(line.as_bytes());
    entry.map(|entry| entry.expect("a request"))
}

fn header(entry: &Entry<'_>, name: &str) -> Option<String> {
    let value = entry.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.to_vec());
    value.map(|value| String::from_utf8(value).unwrap())
}

#[test]
fn a_combined_line_has_all_fields() {
    let line = r#"203.0.113.7 - alice [10/Oct/2000:13:55:36 -0700] "GET /a?b=c HTTP/1.1" 404 2326 "http://x.example/" "Curl \"8\"" 0.012"#;
    let entry = parse(line).unwrap();
    assert_eq!(entry.nanos, 971_211_336_000_000_000);
    assert_eq!(entry.client, Some(IpAddr::from([203, 0, 113, 7])));
    assert_eq!(entry.user.as_deref(), Some("alice"));
    assert_eq!((&*entry.method, &*entry.target), (&b"GET"[..], &b"/a?b=c"[..]));
    assert_eq!((entry.status, entry.length), (404, 2_326));
    assert_eq!(header(&entry, "referer").as_deref(), Some("http://x.example/"));
    assert_eq!(header(&entry, "user-agent").as_deref(), Some("Curl \"8\""));
}

#[test]
fn a_common_line_has_no_header() {
    let line = r#"2001:db8::1 - - [10/Oct/2000:13:55:36 +0000] "POST / HTTP/2.0" 200 -"#;
    let entry = parse(line).unwrap();
    assert_eq!(entry.client, Some("2001:db8::1".parse().unwrap()));
    assert_eq!((entry.user.as_deref(), entry.length, entry.headers.len()), (None, 0, 0));
    assert!(Parser::new(Format::Combined).parse(line.as_bytes()).is_err());
}

#[test]
fn users_may_have_spaces_and_brackets() {
    let line = r#"203.0.113.7 - Ann [1] Lee [10/Oct/2000:13:55:36 +0000] "GET / HTTP/1.1" 200 1"#;
    assert_eq!(parse(line).unwrap().user.as_deref(), Some("Ann [1] Lee"));
    let line = r#"203.0.113.7 - Ann Lee [10/Oct/2000:13:55:36 +0000] "GET / HTTP/1.1" 200 1"#;
    assert_eq!(parse(line).unwrap().user.as_deref(), Some("Ann Lee"));
}

/// The lines are from Caddy, Traefik and nginx.
#[test]
fn json_logs_are_read() {
    let caddy = r#"{"ts":1700000000.25,"request":{"remote_ip":"203.0.113.7","remote_port":"4711","method":"GET","host":"x.example","uri":"/a?b","headers":{"User-Agent":["curl"],"X-Api-Key":["k"]}},"user_id":"","duration":0.1,"size":12,"status":200}"#;
    let traefik = r#"{"StartUTC":"2023-11-14T22:13:20.25Z","ClientHost":"203.0.113.7","RequestMethod":"GET","RequestHost":"x.example","RequestPath":"/a?b","DownstreamStatus":200,"DownstreamContentSize":12,"ClientUsername":"-","request_User-Agent":"curl","request_X-Api-Key":"k"}"#;
    let nginx = r#"{"msec":"1700000000.250","remote_addr":"203.0.113.7","request_method":"GET","host":"x.example","request_uri":"/a?b","status":"200","body_bytes_sent":"12","remote_user":"","http_user_agent":"curl"}"#;
    for line in [caddy, traefik, nginx] {
        let entry = parse(line).unwrap();
        assert_eq!(entry.nanos, 1_700_000_000_250_000_000, "{line}");
        assert_eq!(entry.client, Some(IpAddr::from([203, 0, 113, 7])));
        assert_eq!((&*entry.method, &*entry.target), (&b"GET"[..], &b"/a?b"[..]));
        assert_eq!((entry.status, entry.length), (200, 12));
        assert_eq!(entry.user, None);
        assert_eq!(header(&entry, "host").as_deref(), Some("x.example"));
        assert_eq!(header(&entry, "user-agent").as_deref(), Some("curl"));
    }
    for line in [caddy, traefik] {
        assert_eq!(header(&parse(line).unwrap(), "x-api-key").as_deref(), Some("k"));
    }
}

#[test]
fn lines_behind_prefixes_are_read() {
    let line = r#"203.0.113.7 - - [10/Oct/2000:13:55:36 +0000] "GET /a: HTTP/1.1" 200 1 "-" "x: y""#;
    for prefix in [
        "<190>Mar  2 08:00:00 host nginx: ",
        "Mar  2 08:00:00 host nginx[7]: ",
        "2026-03-02T08:00:00.5+01:00 host nginx[7]: ",
        "<134>1 2026-03-02T08:00:00Z host nginx 7 - - ",
        "2026-03-02T08:00:00.123456789Z stdout F ",
    ] {
        let line = format!("{prefix}{line}");
        let entry = parse(&line).unwrap();
        assert_eq!((entry.nanos, &*entry.target), (971_186_136_000_000_000, &b"/a:"[..]), "{line}");
    }
    // Text that a client sends is never taken for a prefix.
    let forged = format!(r#"203.0.113.7 - - [10/Oct/2000:13:55:36 +0000] "x" 400 0 "-" "Mar  2 a b: {line}""#);
    assert!(parse(&forged).is_err());
    assert!(parse(&format!("Mar  2 08:00:00 host nginx: \"x: {line}")).is_err());
}

#[test]
fn statuses_of_clients_that_left_are_499() {
    for (status, expected) in [("0", 499), ("000", 499), ("499", 499), ("200", 200), ("999", 999)] {
        let line = format!(r#"203.0.113.7 - - [10/Oct/2000:13:55:36 +0000] "GET / HTTP/1.1" {status} 1"#);
        assert_eq!(parse(&line).unwrap().status, expected);
        let line = format!(r#"{{"ts":1700000000,"ip":"203.0.113.7","method":"GET","path":"/","status":{status}}}"#);
        if status != "000" {
            assert_eq!(parse(&line).unwrap().status, expected);
        }
    }
}

#[test]
fn hostile_lines_are_errors() {
    let begin = r#"203.0.113.7 - - [10/Oct/2000:13:55:36 +0000]"#;
    for line in [
        "",
        " ",
        "\0\0\0",
        "-",
        "{",
        "{}",
        "[]",
        "host.example - - [10/Oct/2000:13:55:36 +0000] \"GET / HTTP/1.1\" 200 1",
        "256.0.0.1 - - [10/Oct/2000:13:55:36 +0000] \"GET / HTTP/1.1\" 200 1",
        "203.0.113.7 - - [10/Oct/9999:13:55:36 +0000] \"GET / HTTP/1.1\" 200 1",
        "203.0.113.7 - - [10/Oct/2000:13:55:36 +0000",
        begin,
        &format!("{begin} \"GET / HTTP/1.1"),
        &format!("{begin} \"GET / HTTP/1.1\\\" 200 1"),
        &format!("{begin} \"-\" 400 0"),
        &format!("{begin} \"\" 408 0"),
        &format!("{begin} \"GET / HTTP/1.1\" 99 1"),
        "203.0.113.7 - - [29/Feb/2026:13:55:36 +0000] \"GET / HTTP/1.1\" 200 1",
        "203.0.113.7 - - [31/Nov/2026:13:55:36 +0000] \"GET / HTTP/1.1\" 200 1",
        &format!("{begin} \"GET / HTTP/1.1\" 99999999999999999999 1"),
        &format!("{begin} \"GET / HTTP/1.1\" 200 99999999999999999999"),
        r#"{"ts":1e400,"ip":"203.0.113.7","method":"GET","path":"/","status":200}"#,
        r#"{"ts":-1,"ip":"203.0.113.7","method":"GET","path":"/","status":200}"#,
        r#"{"ts":1,"ip":"203.0.113.7","method":"GET","path":"/","status":70000}"#,
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
    // A client on a Unix socket has no address.
    assert_eq!(parse("- - - [10/Oct/2000:13:55:36 +0000] \"GET / HTTP/1.1\" 200 1").unwrap().client, None);
}

/// The formats' names.
const NAMES: [&str; 12] = [
    "auto",
    "combined",
    "common",
    "vhost-combined",
    "ingress-nginx",
    "json",
    "traefik",
    "envoy",
    "alb",
    "w3c",
    "haproxy",
    "json:time=ts,client=ip",
];

fn lines(file: Vec<u8>) -> Vec<Result<Vec<u8>, usize>> {
    let mut source = Source::new(Cursor::new(file)).unwrap();
    let mut lines = Vec::new();
    while let Some(line) = source.next_line().unwrap() {
        lines.push(match line {
            Line::Whole(line) => Ok(line.to_vec()),
            Line::TooLong(begin) => Err(begin.len()),
        });
    }
    lines
}

#[test]
fn any_line_ending_is_accepted() {
    assert!(lines(b"".to_vec()).is_empty());
    let expected = [b"one".to_vec(), b"".to_vec(), b"two".to_vec()].map(Ok);
    for file in ["one\n\ntwo", "one\n\ntwo\n", "one\r\n\r\ntwo\r\n", "one\r\n\r\ntwo"] {
        assert_eq!(lines(file.into()), expected);
    }
}

#[test]
fn long_lines_are_cut_in_bounded_memory() {
    let long = vec![b'x'; 1 << 20];
    let file = [b"one\n", &long[..], b"\ntwo\n", &long[..LONGEST_LINE], b"\nthree\n", &long[..]].concat();
    let read = lines(file);
    let [Ok(one), Err(cut), Ok(two), Ok(longest), Ok(three), Err(_)] = &read[..] else { panic!("six lines") };
    assert_eq!((&one[..], &two[..], &three[..]), (&b"one"[..], &b"two"[..], &b"three"[..]));
    assert!(*cut < 1_000 && longest.len() == LONGEST_LINE);
}

#[test]
fn gzip_is_read_as_it_is() {
    use std::io::Write;

    let compressed = |text: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    };
    // Rotated logs are often concatenated.
    let file = [compressed(b"one\n"), compressed(b"two\n")].concat();
    assert_eq!(lines(file.clone()), [b"one".to_vec(), b"two".to_vec()].map(Ok));
    let mut cut = Source::new(Cursor::new(file[..file.len() / 4].to_vec())).unwrap();
    assert!(cut.next_line().is_err());
}

#[test]
fn zeros_and_marks_lose_no_line() {
    use std::io::{ErrorKind, Write};

    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(b"one\n").unwrap();
    let one = encoder.finish().unwrap();
    let expected = [b"one".to_vec()].map(Ok);
    assert_eq!(lines([&one[..], &[0; 1_000]].concat()), expected);
    assert_eq!(lines([&one[..], &[0; 1_000], &one].concat()), [b"one".to_vec(), b"one".to_vec()].map(Ok));
    assert_eq!(lines(b"\xef\xbb\xbfone\n".to_vec()), expected);
    assert_eq!(lines(b"\xef\xbb\xbf".to_vec()), []);
    // One stray byte does not look like a file that was cut off.
    for garbage in [&b"what"[..], b"w", b"\0\0\n"] {
        let mut garbage = Source::new(Cursor::new([&one[..], garbage].concat())).unwrap();
        assert_eq!(garbage.next_line().unwrap(), Some(Line::Whole(b"one")));
        let error = garbage.next_line().unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidData && error.to_string().contains("that is no gzip"), "{error}");
    }
    assert!(Source::new(Cursor::new(b"\xff\xfeo\0n\0".to_vec())).is_err());
}

/// A small gzip file expands to a large log.
#[test]
fn a_line_without_end_takes_no_memory() {
    use std::io::{Read, Write};

    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let most = 64_u64 << 20;
    std::io::copy(&mut std::io::repeat(b'x').take(most), &mut encoder).unwrap();
    encoder.write_all(b"\nend\n").unwrap();
    let bomb = encoder.finish().unwrap();
    assert!((bomb.len() as u64) < most / 100);
    let mut source = Source::new(Cursor::new(bomb)).unwrap();
    let Some(Line::TooLong(begin)) = source.next_line().unwrap() else { panic!("a long line") };
    assert!(begin.len() < 1_000);
    assert_eq!(source.next_line().unwrap(), Some(Line::Whole(b"end")));
    assert_eq!(source.next_line().unwrap(), None);
    assert!(source.capacity() <= 4 * LONGEST_LINE);
}

#[test]
fn binary_files_are_lines_that_are_errors() {
    let noise: Vec<u8> = (0..1_u32 << 20).map(|number| number.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    let mut parser = Parser::new(Format::Auto);
    let lines = lines(noise);
    assert!(lines.len() > 1_000);
    for line in lines.into_iter().flatten() {
        assert!(parser.parse(&line).is_err());
    }
}

proptest! {
    #![proptest_config(cases(256))]

    /// Any line is a request or an error.
    #[test]
    fn no_line_panics(line in prop::collection::vec(any::<u8>(), 0..300)) {
        for format in NAMES {
            let _ = Parser::new(format.parse().unwrap()).parse(&line);
        }
    }

    /// Any line that is almost right is a request or an error, too.
    #[test]
    fn no_damaged_line_panics(at in 0_usize..140, bytes in prop::collection::vec(any::<u8>(), 0..9), gone in 0_usize..9) {
        let mut line = br#"203.0.113.7 - al\x69ce [10/Oct/2000:13:55:36 -0700] "GET /a?b=c HTTP/1.1" 404 2326 "http://x.example/" "Curl \"8\"""#.to_vec();
        let at = at.min(line.len());
        let until = (at + gone).min(line.len());
        line.splice(at..until, bytes);
        let mut parser = Parser::new(Format::Auto);
        if let Ok(Some(entry)) = parser.parse(&line) {
            let target = crate::path::Target::read(&entry.target);
            let _ = crate::replay::LineHead::new(crate::replay::Needs::all()).read(&entry, target.as_ref());
        }
    }

    /// Reading undoes a server's escapes.
    #[test]
    fn written_requests_are_read(
        ip in any::<IpAddr>(),
        seconds in 0_i64..16_725_225_600,
        path in "/[a-z0-9/._~?=&%-]{0,60}",
        user in "[a-z][a-z0-9@._-]{0,20}",
        agent in "[ -~]{1,60}",
        status in 100_u16..600,
        length in 0_u64..1 << 40,
    ) {
        let time = jiff::Timestamp::from_second(seconds).unwrap().strftime("%d/%b/%Y:%H:%M:%S +0000").to_string();
        let escaped = agent.replace('\\', "\\\\").replace('"', "\\\"");
        let line = format!("{ip} - {user} [{time}] \"GET {path} HTTP/1.1\" {status} {length} \"-\" \"{escaped}\"");
        let entry = parse(&line).unwrap();
        prop_assert_eq!(entry.nanos, u64::try_from(seconds).unwrap() * 1_000_000_000);
        prop_assert_eq!(entry.client, Some(ip));
        prop_assert_eq!(entry.user.as_deref(), Some(&*user));
        prop_assert_eq!(&*entry.target, path.as_bytes());
        prop_assert_eq!((entry.status, entry.length), (status, length));
        if agent != "-" {
            prop_assert_eq!(header(&entry, "user-agent"), Some(agent));
        }
    }
}
