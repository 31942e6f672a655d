//! Format strings for servers, and lines that they write.

use proptest::prelude::*;

use super::super::known;
use super::*;
use crate::cases::cases;

fn parse<'a>(format: &str, line: &'a str) -> Result<Entry<'a>, Unreadable> {
    Pattern::new(format).unwrap().parse(line.as_bytes(), &mut TimeCache::default(), true)
}

/// Returns the fields in a line: client, user, method, target, status, bytes and milliseconds.
fn read(format: &str, line: &str) -> String {
    let entry = parse(format, line).unwrap_or_else(|problem| panic!("{format}: {problem}\n{line}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let client = entry.client.map_or_else(|| "-".to_owned(), |client| client.to_string());
    let mut words = vec![
        client,
        entry.user.as_deref().unwrap_or("-").to_owned(),
        text(&entry.method),
        text(&entry.target),
        entry.status.to_string(),
        entry.length.to_string(),
        (entry.nanos / 1_000_000).to_string(),
    ];
    words.extend(entry.headers.iter().map(|(name, value)| format!("{name}={}", text(value))));
    words.join(" ")
}

#[test]
fn named_formats_are_whole() {
    assert!(known::ENVOY.is_whole() && known::ALB.is_whole());
}

#[test]
fn strings_of_nginx_are_read() {
    let combined = r#"$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent""#;
    let line = r#"203.0.113.7 - ann [10/Oct/2000:13:55:36 +0000] "GET /a?b HTTP/1.1" 404 7 "-" "a \"b\"""#;
    let expected = "203.0.113.7 ann GET /a?b 404 7 971186136000 user-agent=a \"b\"";
    assert_eq!(read(combined, line), expected);
    // As written in a configuration.
    let directive = r#"log_format  main  '$remote_addr - $remote_user [$time_local] "$request" '
        '$status $body_bytes_sent "$http_referer" '
        '"$http_user_agent"';"#;
    assert_eq!(read(directive, line), expected);
    let json = r#"log_format j escape=json '{"t":"$msec","c":"$remote_addr","r":"$request","s":$status,"k":"${http_x_api_key}"}';"#;
    let line = r#"{"t":"971186136.500","c":"203.0.113.7","r":"GET /a HTTP/1.1","s":200,"k":"secret"}"#;
    assert_eq!(read(json, line), "203.0.113.7 - GET /a 200 0 971186136500 x-api-key=secret");
    let parts = "$time_iso8601 $remote_addr $request_method $uri$is_args$args $status";
    let line = "2000-10-10T13:55:36+00:00 203.0.113.7 PUT /a?b=c 201";
    assert_eq!(read(parts, line), "203.0.113.7 - PUT /a?b=c 201 0 971186136000");
    // A time with a space in it, and the query in its own field.
    let bare = "$time_local|$remote_addr|$uri|$args|";
    assert_eq!(
        read(bare, "10/Oct/2000:13:55:36 +0000|2001:db8::1|/a|b=c|"),
        "2001:db8::1 - GET /a?b=c 200 0 971186136000"
    );
}

#[test]
fn strings_of_apache_are_read() {
    let directive = r#"LogFormat "%v:%p %h %l %u %t \"%r\" %>s %O \"%{Referer}i\" \"%{User-Agent}i\"" vhost_combined"#;
    let line =
        r#"shop.example:443 203.0.113.7 - ann lee [10/Oct/2000:13:55:36 +0000] "GET /a HTTP/1.1" 200 7 "-" "curl""#;
    assert_eq!(
        read(directive, line),
        "203.0.113.7 ann lee GET /a 200 7 971186136000 host=shop.example user-agent=curl"
    );
    let milliseconds = r#"%{%Y-%m-%d %H:%M:%S}t.%{usec_frac}t %a "%m %U%q" %!200{X-Y}i %s"#;
    let line = r#"2000-10-10 13:55:36.250000 203.0.113.7 "GET /a?b" - 200"#;
    assert_eq!(read(milliseconds, line), "203.0.113.7 - GET /a?b 200 0 971186136250");
    let number = "%{msec}t %a %U%q 100%%";
    assert_eq!(read(number, "971186136250 203.0.113.7 /a 100%"), "203.0.113.7 - GET /a 200 0 971186136250");
    // Tomcat uses Java's formats.
    let tomcat = r#"%{yyyy-MM-dd'T'HH:mm:ss.SSSZ}t %a "%r" %s %b %D %I"#;
    let line = r#"2000-10-10T13:55:36.250+0200 203.0.113.7 "GET /a HTTP/1.1" 200 - 12 http-nio-8080-exec-1"#;
    assert_eq!(read(tomcat, line), "203.0.113.7 - GET /a 200 0 971178936250");
}

#[test]
fn strings_of_other_servers_are_read() {
    let envoy = r#"%START_TIME(%s.%3f)% %DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT% %REQ(:METHOD)% %REQ(:PATH):100% %RESPONSE_CODE% %BYTES_SENT%"#;
    assert_eq!(read(envoy, "971186136.250 203.0.113.7 GET /a 200 7"), "203.0.113.7 - GET /a 200 7 971186136250");
    let haproxy = r#"%ci:%cp [%tr] %ft %ST %B %[capture.req.hdr(0)] %{+Q}r"#;
    let line = r#"203.0.113.7:4711 [10/Oct/2000:13:55:36.250] web 200 7 x "GET /a HTTP/1.1""#;
    assert_eq!(read(haproxy, line), "203.0.113.7 - GET /a 200 7 971186136250");
    let gunicorn = r#"%({x-forwarded-for}i)s %(l)s %(u)s %(t)s "%(r)s" %(s)s %(b)s "%(f)s" "%(a)s" %(D)s"#;
    let line = r#"192.0.2.1,203.0.113.7 - - [10/Oct/2000:13:55:36 +0000] "GET /a HTTP/1.1" 200 7 "-" "curl" 250"#;
    let expected = "203.0.113.7 - GET /a 200 7 971186136000 x-forwarded-for=192.0.2.1,203.0.113.7 user-agent=curl";
    assert_eq!(read(gunicorn, line), expected);
    // A missing query does not shift the status.
    let tomcat = "%a %m %U %q %s %b %t %D";
    let line = "203.0.113.7 GET /a  200 512 [10/Oct/2000:13:55:36 +0000] 12";
    assert_eq!(read(tomcat, line), "203.0.113.7 - GET /a 200 512 971186136000");
    let line = "203.0.113.7\tGET\t/a\t?b\t200\t512\t[10/Oct/2000:13:55:36 +0000]\t12";
    assert_eq!(read(tomcat, line), "203.0.113.7 - GET /a?b 200 512 971186136000");
    // Squid pads its columns with spaces.
    let squid =
        "$msec $elapsed $remote_addr $result/$status $bytes_sent $request_method $request_uri $remote_user $peer $type";
    let line = "971186136.250            12 203.0.113.7 TCP_MISS/200 411 GET http://shop.example/a - DIRECT/192.0.2.4 text/html";
    let expected = "203.0.113.7 - GET http://shop.example/a 200 411 971186136250";
    assert_eq!(read(squid, line), expected);
}

#[test]
fn problems_name_the_field() {
    let format = r#"$remote_addr [$time_local] "$request" $status"#;
    for (line, problem) in [
        ("x [10/Oct/2000:13:55:36 +0000] \"GET / HTTP/1.1\" 200", "$remote_addr cannot be read from `x [10/"),
        ("203.0.113.7 [31/Nov/2000:13:55:36 +0000] \"GET / HTTP/1.1\" 200", "$time_local cannot be read"),
        ("203.0.113.7 [10/Oct/2000:13:55:36 +0000] GET / HTTP/1.1 200", "no `] \\\"` is behind $time_local"),
        ("203.0.113.7 [10/Oct/2000:13:55:36 +0000] \"GET / HTTP/1.1\" 20x", "$status cannot be read from `20x`"),
        ("203.0.113.7 [10/Oct/2000:13:55:36 +0000] \"GET / HTTP/1.1\"", "no `\\\" ` is behind $request"),
        ("203.0.113.7 [10/Oct/2000:13:55:36 +0000] \"-\" 400", "the request is not of the form"),
    ] {
        let error = parse(format, line).unwrap_err().to_string();
        assert!(error.contains(problem), "{line}: {error}");
    }
}

proptest! {
    #![proptest_config(cases(256))]

    /// Any string is a pattern or an error, and any line a request or an error.
    #[test]
    fn no_string_or_line_panics(
        format in r#"([$%]|[a-z_{}()"' \[\]:?]|remote_addr|request|START_TIME|REQ|time_local|\{%d/%b\}t){0,30}"#,
        line in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        if let Ok(pattern) = Pattern::new(&format) {
            let _ = pattern.parse(&line, &mut TimeCache::default(), true);
        }
    }

    /// A line that nearly matches takes no longer than others.
    #[test]
    fn lines_of_delimiters_are_bounded(count in 0_usize..5_000, delimiter in r#"[ "\[\]-]"#) {
        let pattern = Pattern::new(r#"$a $b $c [$d] "$e" "$f" $remote_user [$time_local] "$request""#).unwrap();
        let _ = pattern.parse(delimiter.repeat(count).as_bytes(), &mut TimeCache::default(), true);
    }
}

#[test]
fn times_have_spaces_wherever_they_stand() {
    // 08:00:09 UTC on 2026-03-02.
    let expected = "203.0.113.7 - GET /a 200 0 1772438409000";
    for (format, line) in [
        ("%h %m %U %{%Y-%m-%d %H:%M:%S}t", "203.0.113.7 GET /a 2026-03-02 08:00:09"),
        ("at %{%Y-%m-%d %H:%M:%S}t from %h %m %U", "at 2026-03-02 08:00:09 from 203.0.113.7 GET /a"),
        ("%{%d.%m.%Y %H:%M:%S}t %h %m %U", "02.03.2026 08:00:09 203.0.113.7 GET /a"),
        ("$time_iso8601 $remote_addr $request_method $request_uri", "2026-03-02 09:00:09 +0100 203.0.113.7 GET /a"),
        ("$time $client $method $path", "2026-03-02 09:00:09 +0100 203.0.113.7 GET /a"),
        ("$time_iso8601 $_ $client $method $path", "2026-03-02T08:00:09Z x 203.0.113.7 GET /a"),
    ] {
        assert_eq!(read(format, line), expected, "{format}");
    }
    // Otherwise, the offset would be lost.
    assert!(parse("$time_iso8601 $_ $client $method $path", "2026-03-02 09:00:09 +0100 203.0.113.7 GET /a").is_err());
    let problem = parse("$time_iso8601 $client $method $path", "02.03.2026 08:00:09 203.0.113.7 GET /a").unwrap_err();
    assert!(problem.to_string().contains("%{%d.%m.%Y %H:%M:%S}t"), "{problem}");
    let envoy = r#"[%START_TIME%] "%REQ(:METHOD)% %REQ(:PATH)%" %DOWNSTREAM_REMOTE_ADDRESS%\n"#;
    assert_eq!(read(envoy, r#"[2026-03-02T08:00:09Z] "GET /a" 203.0.113.7:4711"#), expected);
}
