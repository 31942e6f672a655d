//! Many servers' logs, in and out of order, as users replay them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

fn sluice(arguments: &[&str]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    Command::new(env!("CARGO_BIN_EXE_sluice")).args(arguments).current_dir(root).output().unwrap()
}

fn text(output: &[u8]) -> &str {
    std::str::from_utf8(output).unwrap()
}

/// A file for this test, in the folder that Cargo provides.
fn file(name: &str, content: impl AsRef<[u8]>) -> String {
    let path: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("logs-{}-{name}", std::process::id()));
    fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

fn config(name: &str, key: &str) -> String {
    let policy =
        format!(r#"{{ name = "attempts", algorithm = "fixed-window", limit = 2, per = "1m", key = "{key}" }}"#);
    file(name, format!("[[route]]\npath = \"/login\"\npolicy = [{policy}]\n"))
}

/// A replay's report in JSON.
fn report(arguments: &[&str]) -> Value {
    let output = sluice(&[&["replay", "--json"], arguments].concat());
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn policy(report: &Value) -> &Value {
    &report["configurations"][0]["policies"][0]
}

/// Three logins from one client and one from another, within a minute: the third is rejected. Each log has them, and
/// some have a request to another path.
const LOGS: [(&str, &str); 24] = [
    (
        "combined",
        r#"203.0.113.7 - - [02/Mar/2026:08:00:01 +0000] "POST /login HTTP/1.1" 200 10 "-" "curl/8"
203.0.113.7 - a [b] c [02/Mar/2026:08:00:02 +0000] "POST /login HTTP/1.1" 000 0 "-" "curl/8"
203.0.113.7 - - [02/Mar/2026:08:00:03 +0000] "POST /login HTTP/1.1" 200 10 "-" "curl/8"
198.51.100.9 - - [02/Mar/2026:09:00:04.250 +0100] "POST /login?next=/ HTTP/1.1" 200 10 "-" "Mozilla/5.0 \"x\""
"#,
    ),
    (
        "common",
        r#"fe80::7%eth0 - - [02/Mar/2026:08:00:01 +0000] "POST /login HTTP/1.1" 200 10
[fe80::7]:4711 - - [02/Mar/2026:08:00:02 +0000] "POST /login HTTP/1.1" 200 10
fe80::7 - - [02/Mar/2026:08:00:03 +0000] "POST /login HTTP/1.1" 200 -
198.51.100.9:4711 - - [02/Mar/2026:08:00:04 +0000] "POST /login HTTP/1.1" 200 10
"#,
    ),
    (
        "vhost-combined",
        r#"shop.example:443 203.0.113.7 - - [02/Mar/2026:08:00:01 +0000] "POST /login HTTP/1.1" 200 10 "-" "curl/8"
shop.example:443 203.0.113.7 - ann [02/Mar/2026:08:00:02 +0000] "POST /login HTTP/1.1" 200 10 "-" "curl/8"
shop.example:443 203.0.113.7 - - [02/Mar/2026:08:00:03 +0000] "POST /login HTTP/1.1" 200 10 "-" "curl/8"
shop.example:443 198.51.100.9 - - [02/Mar/2026:08:00:04 +0000] "POST /login HTTP/1.1" 200 10 "-" "curl/8"
"#,
    ),
    (
        "ingress-nginx",
        r#"203.0.113.7 - - [02/Mar/2026:08:00:01 +0000] "POST /login HTTP/2.0" 200 10 "-" "curl/8" 312 0.002 [shop-web-80] [] 192.0.2.4:8080 10 0.002 200 7d1c
203.0.113.7 - - [02/Mar/2026:08:00:02 +0000] "POST /login HTTP/2.0" 200 10 "-" "curl/8" 312 0.002 [shop-web-80] [] 192.0.2.4:8080 10 0.002 200 7d1d
203.0.113.7 - - [02/Mar/2026:08:00:03 +0000] "POST /login HTTP/2.0" 200 10 "-" "curl/8" 312 0.002 [shop-web-80] [] 192.0.2.4:8080 10 0.002 200 7d1e
198.51.100.9 - - [02/Mar/2026:08:00:04 +0000] "POST /login HTTP/2.0" 200 10 "-" "curl/8" 312 0.002 [shop-web-80] [] 192.0.2.4:8080 10 0.002 200 7d1f
"#,
    ),
    (
        "caddy",
        r#"{"level":"info","ts":1772438401.5,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"203.0.113.7","remote_port":"4711","client_ip":"203.0.113.7","method":"POST","host":"shop.example","uri":"/login","headers":{"User-Agent":["curl/8"]}},"user_id":"","duration":0.1,"size":10,"status":200}
{"level":"info","ts":1772438402.5,"request":{"remote_ip":"203.0.113.7","method":"POST","uri":"/login","headers":{}},"size":10,"status":0}
{"level":"info","ts":1772438403.5,"request":{"remote_ip":"203.0.113.7","method":"POST","uri":"/login","headers":{}},"size":10,"status":200}
{"level":"info","ts":1772438404.5,"request":{"remote_ip":"198.51.100.9","method":"POST","uri":"/login","headers":{}},"size":10,"status":200}
"#,
    ),
    (
        "traefik",
        r#"{"StartUTC":"2026-03-02T08:00:01.1Z","ClientHost":"203.0.113.7","ClientAddr":"203.0.113.7:4711","RequestMethod":"POST","RequestPath":"/login","DownstreamStatus":200,"DownstreamContentSize":10,"time":"2026-03-02T08:00:01Z"}
{"StartUTC":"2026-03-02T08:00:02.1Z","ClientHost":"203.0.113.7","RequestMethod":"POST","RequestPath":"/login","DownstreamStatus":200,"DownstreamContentSize":10}
203.0.113.7 - - [02/Mar/2026:08:00:03 +0000] "POST /login HTTP/1.1" 200 10 "-" "-" 3 "shop@file" "http://192.0.2.4:8080" 2ms
198.51.100.9 - - [02/Mar/2026:08:00:04 +0000] "POST /login HTTP/1.1" 200 10 "-" "-" 4 "shop@file" "http://192.0.2.4:8080" 2ms
"#,
    ),
    (
        "envoy",
        r#"[2026-03-02T08:00:01.310Z] "POST /login HTTP/2" 200 - 154 10 226 100 "203.0.113.7" "curl/8" "cc21d9b0-cf5c" "shop.example" "192.0.2.4:80"
[2026-03-02T08:00:02.310Z] "POST /login HTTP/2" 0 DC 154 10 226 - "192.0.2.1,203.0.113.7" "curl/8" "cc21d9b0-cf5d" "shop.example" "192.0.2.4:80"
{"start_time":"2026-03-02T08:00:03.310Z","method":"POST","path":"/login","x_envoy_original_path":null,"response_code":200,"bytes_sent":10,"downstream_remote_address":"203.0.113.7:4711","x_forwarded_for":null}
{"start_time":"2026-03-02T08:00:04.310Z","method":"POST","path":"/changed","x_envoy_original_path":"/login","response_code":200,"bytes_sent":10,"x_forwarded_for":"192.0.2.1,198.51.100.9"}
"#,
    ),
    (
        "envoy",
        r#"[2026-03-02T08:00:01.310Z] "POST /login HTTP/1.1" 200 - via_upstream - "-" 0 10 3 2 "-" "curl/8" "f1" "shop.example" "192.0.2.4:80" outbound|80||shop 192.0.2.9:38 192.0.2.9:80 203.0.113.7:4711 - default
[2026-03-02T08:00:02.310Z] "POST /login HTTP/1.1" 200 - via_upstream - "-" 0 10 3 2 "-" "curl/8" "f2" "shop.example" "192.0.2.4:80" outbound|80||shop 192.0.2.9:38 192.0.2.9:80 203.0.113.7:4712 - default
[2026-03-02T08:00:03.310Z] "POST /login HTTP/1.1" 200 - via_upstream - "-" 0 10 3 2 "-" "curl/8" "f3" "shop.example" "192.0.2.4:80" outbound|80||shop 192.0.2.9:38 192.0.2.9:80 203.0.113.7:4713 - default
[2026-03-02T08:00:04.310Z] "POST /login HTTP/1.1" 200 - via_upstream - "-" 0 10 3 2 "-" "curl/8" "f4" "shop.example" "192.0.2.4:80" outbound|80||shop 192.0.2.9:38 192.0.2.9:80 198.51.100.9:4714 - default
"#,
    ),
    (
        "alb",
        r#"https 2026-03-02T08:00:03.200000Z app/shop/50dc6c495c0c9188 203.0.113.7:2817 192.0.2.4:80 0.086 0.048 0.037 200 200 34 10 "POST https://shop.example:443/login HTTP/1.1" "curl/8" ECDHE TLSv1.2 arn:aws:elasticloadbalancing "Root=1-58337281" "shop.example" "arn:aws:acm" 1 2026-03-02T08:00:01.100000Z "forward" "-" "-" "192.0.2.4:80" "200" "-" "-"
h2 2026-03-02T08:00:02.300000Z app/shop/50dc6c495c0c9188 203.0.113.7:2818 192.0.2.4:80 0.086 0.048 0.037 200 200 34 10 "POST https://shop.example:443/login HTTP/2.0" "curl/8" ECDHE TLSv1.2 arn:aws:elasticloadbalancing "Root=1-58337282" "shop.example" "arn:aws:acm" 1 2026-03-02T08:00:02.100000Z "forward" "-" "-" "192.0.2.4:80" "200" "-" "-"
http 2026-03-02T08:00:03.300000Z app/shop/50dc6c495c0c9188 203.0.113.7:2819 192.0.2.4:80 0.086 0.048 0.037 200 200 34 10 "POST http://shop.example:80/login HTTP/1.1" "curl/8"
http 2026-03-02T08:00:04.300000Z app/shop/50dc6c495c0c9188 198.51.100.9:2820 - -1 -1 -1 460 - 34 0 "POST http://shop.example:80/login HTTP/1.1" "curl/8" - -
"#,
    ),
    (
        "alb",
        r#"2026-03-02T08:00:01.200000Z shop 203.0.113.7:2817 192.0.2.4:80 0.000073 0.001048 0.000057 200 200 0 10 "POST http://shop.example:80/login HTTP/1.1" "curl/8" - -
2026-03-02T08:00:02.200000Z shop 203.0.113.7:2817 192.0.2.4:80 0.000073 0.001048 0.000057 200 200 0 10 "POST http://shop.example:80/login HTTP/1.1" "curl/8" - -
2026-03-02T08:00:03.200000Z shop 203.0.113.7:2817 192.0.2.4:80 0.000073 0.001048 0.000057 200 200 0 10 "POST http://shop.example:80/login HTTP/1.1"
2026-03-02T08:00:04.200000Z shop 198.51.100.9:2817 192.0.2.4:80 0.000073 0.001048 0.000057 200 200 0 10 "POST http://shop.example:80/login HTTP/1.1" "curl/8" - -
"#,
    ),
    (
        "cloudfront",
        "#Version: 1.0
#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer) cs(User-Agent) cs-uri-query
2026-03-02\t08:00:01\tFRA2\t10\t203.0.113.7\tPOST\td111.cloudfront.example\t/login\t200\t-\tMozilla/5.0%2520(X11)\t-
2026-03-02\t08:00:02\tFRA2\t10\t203.0.113.7\tPOST\td111.cloudfront.example\t/login\t000\t-\tMozilla/5.0%2520(X11)\ta=b
2026-03-02\t08:00:03\tFRA2\t10\t203.0.113.7\tPOST\td111.cloudfront.example\t/login\t200\t-\tMozilla/5.0%2520(X11)\t-
2026-03-02\t08:00:04\tFRA2\t10\t198.51.100.9\tPOST\td111.cloudfront.example\t/login\t200\t-\tMozilla/5.0%2520(X11)\t-
",
    ),
    (
        "w3c",
        "\u{feff}#Software: Microsoft Internet Information Services 10.0\r
#Date: 2026-03-02 08:00:00\r
#Fields: date time s-ip cs-method cs-uri-stem cs-uri-query s-port cs-username c-ip cs(User-Agent) cs(Referer) sc-status sc-bytes time-taken\r
2026-03-02 08:00:01 192.0.2.4 POST /login - 443 - 203.0.113.7 Mozilla/5.0+(X11) - 200 10 15\r
2026-03-02 08:00:02 192.0.2.4 POST /login a=b 443 SHOP\\ann 203.0.113.7 Mozilla/5.0+(X11) - 401 10 15\r
2026-03-02 08:00:03 192.0.2.4 POST /login - 443 - 203.0.113.7 Mozilla/5.0+(X11) - 200 10 15\r
#Fields: date time c-ip cs-method cs-uri-stem sc-status\r
2026-03-02 08:00:04 198.51.100.9 POST /login 200\r
",
    ),
    (
        "haproxy",
        r#"Mar  2 08:00:09 lb haproxy[14389]: 203.0.113.7:33317 [02/Mar/2026:08:00:01.655] http-in~ static/srv1 10/0/30/69/109 200 10 - - ---- 1/1/1/1/0 0/0 {shop.example} {} "POST /login HTTP/1.1"
<134>Mar  2 08:00:09 lb haproxy[14389]: 203.0.113.7:33318 [02/Mar/2026:08:00:02.655] http-in~ static/srv1 10/0/30/69/109 200 +10 - - ---- 1/1/1/1/0 0/0 "POST /login HTTP/1.1"
<134>1 2026-03-02T08:00:09Z lb haproxy 14389 - - 203.0.113.7:33319 [02/Mar/2026:08:00:03.655] http-in~ static/srv1 10/0/30/69/109 200 10 - - ---- 1/1/1/1/0 0/0 "POST /login HTTP/1.1"
198.51.100.9:33320 [02/Mar/2026:08:00:04.655] http-in~ static/<NOSRV> 0/-1/-1/-1/0 -1 0 - - CR-- 1/1/0/0/0 0/0 "POST /login HTTP/1.1"
"#,
    ),
    (
        "ecs",
        r#"{"@timestamp":"2026-03-02T08:00:01.000Z","source.ip":"203.0.113.7","http.request.method":"POST","url.path":"/login","http.response.status_code":200}
{"@timestamp":"2026-03-02T08:00:02.000Z","source":{"ip":"203.0.113.7"},"http":{"request":{"method":"POST"},"response":{"status_code":200,"body":{"bytes":10}}},"url":{"path":"/login","query":"a=b"}}
{"@timestamp":"2026-03-02T08:00:03.000Z","source":{"ip":"203.0.113.7"},"http.request":{"method":"POST"},"http":{"response.status_code":200},"url":{"original":"/login"},"user":{"name":"ann"}}
{"@timestamp":"2026-03-02T08:00:04.000Z","client":{"ip":"198.51.100.9"},"http":{"request":{"method":"POST"},"response":{"status_code":200}},"url":{"original":"https://shop.example/login"}}
"#,
    ),
    (
        "json",
        r#"{"timestamp":"2026-03-02T08:00:01Z","time":0.002,"remote_addr":"203.0.113.7","request":"POST /login HTTP/1.1","status":"200"}
{"time":0.002,"timestamp":"2026-03-02T08:00:02Z","remote_addr":"203.0.113.7","request":"POST /login HTTP/1.1","status":"000"}
{"msec":"1772438403.001","time":"0.003","remote_addr":"203.0.113.7","request":"POST /login?a=b HTTP/1.1","status":200}
{"time_local":"02/Mar/2026:08:00:04 +0000","http_x_forwarded_for":"192.0.2.1, 198.51.100.9","request":"POST /login HTTP/1.1","status":200}
"#,
    ),
    (
        "json",
        r#"{"requestId":"r1","ip":"203.0.113.7","user":"-","requestTime":"02/Mar/2026:08:00:01 +0000","httpMethod":"POST","resourcePath":"/login","status":"200","protocol":"HTTP/1.1","responseLength":"10"}
{"requestId":"r2","ip":"203.0.113.7","requestTime":"02/Mar/2026:08:00:02 +0000","routeKey":"POST /login","status":"200","responseLength":"10"}
{"httpRequest":{"latency":"0.046s","remoteIp":"203.0.113.7","requestMethod":"POST","requestUrl":"https://shop.example/login?a=b","responseSize":"10","status":200},"receiveTimestamp":"2026-03-02T08:00:09Z","timestamp":"2026-03-02T08:00:03.1Z"}
{"level":30,"time":1772438404123,"req":{"method":"POST","url":"/login","headers":{"host":"shop.example"},"remoteAddress":"198.51.100.9"},"res":{"statusCode":200},"responseTime":3}
"#,
    ),
    (
        "json",
        r#"{"ClientIP":"203.0.113.7","ClientRequestHost":"shop.example","ClientRequestMethod":"POST","ClientRequestURI":"/login?a=b","EdgeEndTimestamp":"2026-03-02T08:00:02Z","EdgeResponseBytes":10,"EdgeResponseStatus":200,"EdgeStartTimestamp":"2026-03-02T08:00:01Z"}
{"ClientIP":"203.0.113.7","ClientRequestMethod":"POST","ClientRequestPath":"/login","EdgeResponseStatus":200,"EdgeStartTimestamp":1772438402000000000}
{"time":"2026-03-02T08:00:03Z","category":"ApplicationGatewayAccessLog","properties":{"clientIP":"203.0.113.7","httpMethod":"POST","requestUri":"/login","requestQuery":"a=b","httpStatus":200,"sentBytes":10}}
{"time":"2026-03-02T08:00:04Z","properties":{"clientIP":"198.51.100.9","httpMethod":"POST","requestUri":"/login","httpStatus":200}}
"#,
    ),
    // Squid, gin and Heroku's router.
    (
        "$msec $_ $remote_addr $_/$status $bytes_sent $request_method $request_uri",
        r#"1772438401.123     45 203.0.113.7 TCP_MISS/200 10 POST http://shop.example/login - HIER_DIRECT/192.0.2.4 text/html
1772438402.123     45 203.0.113.7 TCP_MISS/200 10 POST http://shop.example/login - HIER_DIRECT/192.0.2.4 text/html
1772438403.123      5 203.0.113.7 TCP_MISS/200 10 POST http://shop.example/login - HIER_DIRECT/192.0.2.4 text/html
1772438404.123      5 198.51.100.9 TCP_DENIED/403 10 POST http://shop.example/login - HIER_NONE/- text/html
"#,
    ),
    (
        r#"[GIN] %{%Y/%m/%d - %H:%M:%S}t | %s | %D | %a | %m "%U""#,
        r#"[GIN] 2026/03/02 - 08:00:01 | 200 |      1.234ms |     203.0.113.7 | POST     "/login"
[GIN] 2026/03/02 - 08:00:02 | 200 |      1.234ms |     203.0.113.7 | POST     "/login"
[GIN] 2026/03/02 - 08:00:03 | 200 |    134.234µs |     203.0.113.7 | POST     "/login"
[GIN] 2026/03/02 - 08:00:04 | 404 |      1.234ms |    198.51.100.9 | POST     "/login"
"#,
    ),
    (
        r#"$time $_ at=info method=$method path="$path" host=$host request_id=$_ fwd="$client" $_ status=$status bytes=$bytes $_"#,
        r#"2026-03-02T08:00:01.123456+00:00 heroku[router]: at=info method=POST path="/login" host=shop.example request_id=8a fwd="203.0.113.7" dyno=web.1 connect=1ms service=18ms status=200 bytes=10 protocol=https
2026-03-02T08:00:02.123456+00:00 heroku[router]: at=info method=POST path="/login" host=shop.example request_id=8b fwd="203.0.113.7" dyno=web.1 connect=1ms service=18ms status=200 bytes=10 protocol=https
2026-03-02T08:00:03.123456+00:00 heroku[router]: at=info method=POST path="/login" host=shop.example request_id=8c fwd="203.0.113.7" dyno=web.1 connect=1ms service=18ms status=200 bytes=10 protocol=https
2026-03-02T08:00:04.123456+00:00 heroku[router]: at=info method=POST path="/login" host=shop.example request_id=8d fwd="198.51.100.9" dyno=web.1 connect=1ms service=18ms status=200 bytes=10 protocol=https
"#,
    ),
    // A name for each part.
    (
        "json:time=when,client=who,method=verb,path=where,status=answer.code,bytes=answer.size",
        r#"{"when":"2026-03-02 08:00:01,250","who":"203.0.113.7","verb":"POST","where":"/login","answer":{"code":200,"size":10}}
{"when":"2026-03-02 08:00:02,250","who":"192.0.2.1, 203.0.113.7","verb":"POST","where":"/login","answer":{"code":200,"size":10}}
{"when":"2026-03-02 08:00:03,250","who":"203.0.113.7","verb":"POST","where":"/login","answer":{"code":200,"size":10}}
{"when":"2026-03-02 08:00:04,250","who":"198.51.100.9","verb":"POST","where":"/login","answer":{"code":200,"size":10}}
"#,
    ),
    // nginx behind a load balancer, whose address is not logged.
    (
        r#"$host $http_x_forwarded_for - $remote_user [$time_local] "$request" $status $request_time "$http_user_agent""#,
        r#"shop.example 203.0.113.7 - - [02/Mar/2026:08:00:01 +0000] "POST /login HTTP/1.1" 200 0.010 "curl/8"
shop.example 192.0.2.1, 203.0.113.7 - ann lee [02/Mar/2026:08:00:02 +0000] "POST /login HTTP/1.1" 200 0.010 "a \" b"
shop.example 203.0.113.7 - - [02/Mar/2026:08:00:03 +0000] "POST /login HTTP/1.1" 200 0.010 "-"
shop.example 198.51.100.9 - - [02/Mar/2026:08:00:04 +0000] "POST /login HTTP/1.1" 499 0.010 "-"
"#,
    ),
    // Apache with milliseconds.
    (
        r#"%a %l %u [%{%d/%b/%Y:%T}t.%{msec_frac}t %{%z}t] \"%m %U%q %H\" %>s %b \"%{X-Api-Key}i\" %D"#,
        r#"203.0.113.7 - - [02/Mar/2026:08:00:01.250 +0000] "POST /login HTTP/1.1" 200 10 "k1" 250
203.0.113.7 - - [02/Mar/2026:08:00:02.250 +0000] "POST /login?a=b HTTP/1.1" 200 10 "-" 250
203.0.113.7 - - [02/Mar/2026:09:00:03.250 +0100] "POST /login HTTP/1.1" 200 10 "k1" 250
198.51.100.9 - - [02/Mar/2026:08:00:04.250 +0000] "POST /login HTTP/1.1" 200 - "k1" 250
"#,
    ),
    // Envoy with a custom format.
    (
        r#"%START_TIME(%Y-%m-%d %H:%M:%S.%3f)% %DOWNSTREAM_REMOTE_ADDRESS% "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% %BYTES_SENT% "%REQ(X-API-KEY)%""#,
        r#"2026-03-02 08:00:01.250 203.0.113.7:4711 "POST /login HTTP/2" 200 10 "k1"
2026-03-02 08:00:02.250 203.0.113.7:4711 "POST /login?a=b HTTP/2" 200 10 "-"
2026-03-02 08:00:03.250 203.0.113.7:4711 "POST /login HTTP/2" 200 10 "-"
2026-03-02 08:00:04.250 198.51.100.9:4711 "POST /login HTTP/2" 0 10 "-"
"#,
    ),
];

#[test]
fn each_format_has_the_same_report() {
    let config = config("formats.toml", "client-ip");
    for (number, (format, log)) in LOGS.iter().enumerate() {
        let log = file(&format!("format-{number}.log"), log);
        let is_recognised = !format.contains([':', '$', '%']);
        for format in [format].into_iter().chain(is_recognised.then_some(&"auto")) {
            let report = report(&["--config", &config, "--log-format", format, &log]);
            assert_eq!(report["log"]["unreadable"], 0, "{format}: {}", report["log"]["first_unreadable"]);
            assert_eq!(report["log"]["requests"], 4, "{format}");
            assert_eq!(report["log"]["first_time"], "2026-03-02 08:00:01", "{format}");
            assert_eq!(report["log"]["last_time"], "2026-03-02 08:00:04", "{format}");
            assert_eq!(report["log"]["warnings"], json!([]), "{format}");
            let policy = policy(&report);
            assert_eq!(policy["without_key"], 0, "{format}");
            let counts = ["admitted", "rejected", "clients", "clients_rejected"].map(|name| policy[name].as_u64());
            assert_eq!(counts, [3, 1, 2, 1].map(Some), "{format}");
            assert_eq!(policy["first_rejection"]["time"], "2026-03-02 08:00:03", "{format}");
        }
        fs::remove_file(log).unwrap();
    }
}

/// A line in the combined format, at a second on 2026-03-02.
fn line(second: u64, client: &str) -> String {
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!(
        "{client} - - [02/Mar/2026:{hour:02}:{minute:02}:{second:02} +0000] \"POST /login HTTP/1.1\" 200 10 \"-\" \"-\"\n"
    )
}

/// Requests from one client every 40 seconds, so never twice in a minute.
fn calm_log(seconds: std::ops::Range<u64>, client: &str) -> Vec<String> {
    seconds.step_by(40).map(|second| line(second, client)).collect()
}

#[test]
fn files_are_put_in_order() {
    let config = config("order.toml", "client-ip");
    let [old, new] = [0..10_000, 10_000..20_000]
        .map(|range: std::ops::Range<u64>| calm_log(range.clone(), "203.0.113.7").concat() + &line(range.end - 1, "-"));
    // The newest file has the name that sorts first, as rotated logs do.
    let [old, new, other] = [
        file("access.log.1", old),
        file("access.log", new),
        file("other-server.log", calm_log(5_000..15_000, "198.51.100.9").concat()),
    ];
    let mut reports = Vec::new();
    for files in [[&new, &old, &other], [&other, &old, &new], [&old, &new, &other]] {
        let report = report(&["--config", &config, files[0], files[1], files[2]]);
        assert_eq!(policy(&report)["rejected"], 0);
        assert_eq!(report["log"]["files"], json!([old, other, new]));
        assert_eq!(report["log"]["out_of_order_and_sorted"]["lines"], 0);
        assert_eq!(report["log"]["warnings"], json!([]));
        reports.push(report);
    }
    assert!(reports.windows(2).all(|pair| pair[0] == pair[1]));
    // A user who concatenates them is warned, with the cure.
    let whole = file("whole.log", [fs::read(&new).unwrap(), fs::read(&old).unwrap()].concat());
    let output = sluice(&["replay", "--config", &config, &whole]);
    let report = text(&output.stdout);
    assert!(report.contains("  WARNING: 251 lines are older than one before"), "{report}");
    assert!(report.contains("Name the files that the log was put together from"), "{report}");
    assert!(report.contains("or repeat this with --window 6h"), "{report}");
    for file in [old, new, other, whole, config] {
        fs::remove_file(file).unwrap();
    }
}

/// One line's wrong clock would put all following lines at that time.
#[test]
fn one_wrong_clock_spoils_nothing() {
    let config = config("clock.toml", "client-ip");
    let lines = calm_log(0..40_000, "203.0.113.7");
    for at in [0, 1, 500, lines.len() - 2] {
        let mut wrong = lines.clone();
        wrong[at] = wrong[at].replace("/2026:", "/2027:");
        let log = file(&format!("clock-{at}.log"), wrong.concat());
        let report = report(&["--config", &config, &log]);
        assert_eq!(policy(&report)["rejected"], 0, "line {at}");
        assert_eq!(report["log"]["ahead_beyond_window"]["lines"], 1, "line {at}");
        assert_eq!(report["log"]["late_beyond_window"]["lines"], 0, "line {at}");
        assert_eq!(report["log"]["last_time"], "2026-03-02 11:06:00", "line {at}");
        let warning = report["log"]["warnings"][0].as_str().unwrap();
        assert!(warning.starts_with("1 line is newer than most lines behind"), "{warning}");
        assert!(warning.contains("by up to 36"), "{warning}");
        fs::remove_file(log).unwrap();
    }
    fs::remove_file(config).unwrap();
}

#[test]
fn a_window_bounds_what_is_sorted() {
    let config = config("window.toml", "client-ip");
    let mut lines = calm_log(0..8_000, "203.0.113.7");
    // One request that takes ten minutes is logged when it ends.
    let long = lines.remove(100);
    lines.insert(114, long);
    let log = file("window.log", lines.concat());
    let narrow = report(&["--config", &config, &log]);
    assert_eq!(narrow["log"]["late_beyond_window"], json!({ "lines": 1, "furthest_seconds": 560 }));
    assert!(narrow["log"]["warnings"][0].as_str().unwrap().contains("--window 15m"));
    let wide = report(&["--config", &config, "--window", "15m", &log]);
    assert_eq!(wide["log"]["out_of_order_and_sorted"], json!({ "lines": 1, "furthest_seconds": 560 }));
    assert_eq!(wide["log"]["warnings"], json!([]));
    let output = sluice(&["replay", "--config", &config, "--window", "15m", &log]);
    let expected = "  1 line was out of order, by up to 9 min 20 s, and put in order (the window is 15 min)\n";
    assert!(text(&output.stdout).contains(expected), "{}", text(&output.stdout));
    for file in [log, config] {
        fs::remove_file(file).unwrap();
    }
}

#[test]
fn requests_without_key_are_counted() {
    let log = file("keyless.log", [line(1, "-"), line(2, "unix:"), line(3, "203.0.113.7")].concat());
    for (key, row, hint) in [
        ("client-ip", "without a key  2 not replayed, since the log lacks their address", "nginx $remote_addr"),
        ("header:x-api-key", "without a key  3 rejected with 400", "nginx \"$http_x_api_key\""),
        ("user", "without a key  3 rejected with 400", "nginx $remote_user"),
        ("cookie:sid", "without a key  3 rejected with 400", "nginx \"$cookie_sid\", Apache \"%{sid}C\""),
        ("query:api_key", "without a key  3 rejected with 400", "no parameter api_key in the query"),
    ] {
        let config = config("keyless.toml", key);
        let output = sluice(&["replay", "--config", &config, &log]);
        let report = text(&output.stdout);
        assert!(report.contains(row), "{report}");
        assert_eq!(report.matches("  NOTE: ").count(), 1, "{report}");
        assert!(report.contains(hint), "{report}");
        fs::remove_file(config).unwrap();
    }
    // With the field in the log, the key is found.
    let config = config("keyed.toml", "header:x-api-key");
    let keyed = file("keyed.log", line(1, "203.0.113.7").replace("\"-\"\n", "\"-\" \"secret\"\n"));
    let format = r#"$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent" "$http_x_api_key""#;
    let report = report(&["--config", &config, "--log-format", format, &keyed]);
    assert_eq!((&policy(&report)["admitted"], &report["log"]["hints"]), (&json!(1), &json!([])));
    for file in [log, config, keyed] {
        fs::remove_file(file).unwrap();
    }
}

/// If the log has the plan's header, the plan's limit applies, otherwise the policy's. There is no suggestion, because
/// it would depend on the plan.
#[test]
fn plans_of_a_log_have_their_limits() {
    let policy_of = |plans: &str| {
        format!(
            "[[route]]\npath = \"/login\"\n[[route.policy]]\nname = \"attempts\"\nalgorithm = \"fixed-window\"\nlimit = 2\n\
             per = \"1m\"\nkey = \"client-ip\"\n{plans}\n"
        )
    };
    let plans = "plans = { by = \"header:x-plan\", limits = { gold = { limit = 4 }, slow = { limit = 1 } } }";
    let [config, without] = [plans, ""].map(|plans| file(&format!("plans{}.toml", plans.len()), policy_of(plans)));
    let lines = [(1, "gold"), (2, "slow"), (3, "-"), (4, "other")].into_iter().flat_map(|(client, plan)| {
        let line = move |second| {
            format!("192.0.2.{client} [02/Mar/2026:08:00:0{second} +0000] \"GET /login HTTP/1.1\" 200 \"{plan}\"\n")
        };
        (0..6).map(line)
    });
    let log = file("plans.log", lines.collect::<String>());
    let format = r#"$remote_addr [$time_local] "$request" $status "$http_x_plan""#;
    for (config, counts, is_suggested) in [(&config, [4 + 1 + 2 + 2, 15], false), (&without, [4 * 2, 16], true)] {
        let report = report(&["--config", config, "--log-format", format, "--suggest", "99", &log]);
        let found = ["admitted", "rejected"].map(|name| policy(&report)[name].as_u64().unwrap());
        assert_eq!(found, counts, "{report}");
        assert_eq!(policy(&report)["suggestion"].is_object(), is_suggested, "{report}");
    }
    for file in [config, without, log] {
        fs::remove_file(file).unwrap();
    }
}

/// Cookies, parameters and methods are keys, if the log has them.
#[test]
fn logged_cookies_and_queries_are_keys() {
    let nginx = r#"$remote_addr [$time_local] "$request" $status "$cookie_sid""#;
    let apache = r#"%h %t \"%r\" %>s \"%{sid}C\""#;
    let line = |second: u32, method: &str, target: &str, sid: &str| {
        format!("203.0.113.7 [02/Mar/2026:08:00:0{second} +0000] \"{method} {target} HTTP/1.1\" 200 \"{sid}\"\n")
    };
    let text: String = (1..=3)
        .map(|second| line(second, "POST", "/login?api_key=k1", "ada"))
        .chain([line(4, "GET", "/login?%61pi_key=k1", "%61da"), line(5, "GET", "/login?api_key=k2", "-")])
        .collect();
    let text_log = file("cookies.log", text);
    let object = |second: u32, field: &str, sid: &str| {
        format!(
            "{{\"ts\":\"2026-03-02T08:00:0{second}Z\",\"ip\":\"203.0.113.7\",\"method\":\"GET\",\"path\":\"/login\",\
             \"{field}\":\"{sid}\"}}\n"
        )
    };
    let objects = |field: &str| {
        let known: String = (1..=4).map(|second| object(second, field, "ada")).collect();
        known + &object(5, field, "-")
    };
    let [json, other] = ["cookie_sid", "session"].map(|field| file(field, objects(field)));
    for (key, format, log, counts) in [
        ("cookie:sid", nginx, &text_log, [2, 2, 1]),
        ("cookie:sid", apache, &text_log, [2, 2, 1]),
        ("cookie:sid", "json", &json, [2, 2, 1]),
        ("cookie:sid", "json:cookie:sid=session", &other, [2, 2, 1]),
        ("query:api_key", nginx, &text_log, [3, 2, 0]),
        ("method", nginx, &text_log, [4, 1, 0]),
    ] {
        let config = config("keys.toml", key);
        let report = report(&["--config", &config, "--log-format", format, log]);
        let found = ["admitted", "rejected", "without_key"].map(|name| policy(&report)[name].as_u64().unwrap());
        assert_eq!(found, counts, "{key} {format}: {}", report["log"]);
        fs::remove_file(config).unwrap();
    }
    for file in [text_log, json, other] {
        fs::remove_file(file).unwrap();
    }
}

#[test]
fn formats_that_cannot_be_are_explained() {
    let config = config("strings.toml", "client-ip");
    for (format, cure) in [
        ("combine", "vhost-combined"),
        ("$remote_addr $request", "it has no time: add $time_iso8601"),
        ("%h %t", "it has no path: add $request"),
        ("$remote_addr$time_local $request", "nothing is between $remote_addr and $time_local"),
        ("json:when=ts", "write time, client, user, method, path"),
        ("json:ts", "write PART=FIELD"),
        ("w3c:date time c-ip", "lack cs-uri-stem"),
        ("%REQ(:PATH)", "does not end"),
        ("%{yyyy-QQ}t %r", "`QQ` in the form of the time"),
    ] {
        let output =
            sluice(&["replay", "--config", &config, "--log-format", format, "crates/sluice/examples/access.log"]);
        let problem = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{format}: {problem}");
        assert!(problem.contains(cure), "{format}: {problem}");
    }
    // If a format string does not describe the lines, the message says where it fails.
    let format = "$remote_addr [$time_local] \"$request\" $status";
    let output = sluice(&["replay", "--config", &config, "--log-format", format, "crates/sluice/examples/access.log"]);
    let problem = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{problem}");
    assert!(problem.contains("$remote_addr cannot be read from `203.0.113.88 - blue"), "{problem}");
    fs::remove_file(config).unwrap();
}

/// Lines from uvicorn, morgan and gin, which `auto` does not know.
#[test]
fn unknown_lines_say_what_to_do() {
    let config = config("unknown.toml", "client-ip");
    for (line, cure) in [
        ("INFO:     203.0.113.7:54321 - \"POST /login HTTP/1.1\" 200 OK", "it has no time, which a replay needs"),
        ("POST /login 200 1.234 ms - 10", "morgan: combined"),
        ("::ffff:203.0.113.7 - POST /login HTTP/1.1 200 10 - 1.234 ms", "docker logs -t"),
        ("[GIN] 2026/03/02 - 08:00:01 | 200 | 1.2ms | 203.0.113.7 | POST \"/login\"", "in which $_ skips a field"),
        ("1772438401.123 45 203.0.113.7 TCP_MISS/200 10 POST http://a/login -", "in no format that is recognised"),
        ("I, [2026-03-02T08:00:01.1 #7]  INFO -- : [8a] Started POST \"/login\"", "in no format that is recognised"),
        ("host.example - - [02/Mar/2026:08:00:01 +0000] \"POST /login HTTP/1.1\" 200 10", "and no names of hosts"),
    ] {
        let log = file("unknown.log", line);
        let output = sluice(&["replay", "--config", &config, &log]);
        let problem = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{line}: {problem}");
        assert!(problem.contains(cure), "{line}: {problem}");
        fs::remove_file(log).unwrap();
    }
    fs::remove_file(config).unwrap();
}

#[test]
fn a_plot_without_folder_fails_first() {
    let config = config("plot.toml", "client-ip");
    let output = sluice(&["replay", "--config", &config, "--plot", "missing/report.svg", "missing.log"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("its folder does not exist; make it"), "{}", text(&output.stderr));
    fs::remove_file(config).unwrap();
}

/// Ten lines from one client, a minute apart, and the ten after them, as `zstd` and `xz` compress them.
const COMPRESSED: [(&str, [&str; 2]); 2] = [
    (
        "zstd",
        [
            "28b52ffd046815030022851117806d0ec0547401bc219605e8671fb794b4b6de1b744e0f05f1dc20b45540fdaf95a6322546c4d1\
         e3481073340e65e6ff03fff087c4a1db2f9b9a84ed172f2fbf6caaf96cdf0a20d0bb034a29f40a65854a41af5056a8147a159425\
         cc28a36536f8b6",
            "28b52ffd04681d030022c51117806d0ec0547401bc219605e8671fb794b4b6de1b744e0f05f1dc20b45540fdaf95a6322546c4d1\
         e3481073340e65e6ff03fff00a8943b75f363509db2f5e5e7ed954f3d9be010a20d0bb034a29f40a65854a41af5056a8147a1594\
         25cc28a393b0c93f",
        ],
    ),
    (
        "xz",
        [
            "fd377a585a000004e6d6b446020021011c00000010cf58cce002d900605d00190c02b7378d96f3a6716493d35477a41ac1aeae21\
         2b0889a45a4b6e686fccf36cb5a5b8d4f77cb4f944b0d5a32fc5a1d400efba4d82f813b339ed01aeeb2dc94517468206d6ed98b9\
         cdc9e72320abe0bc993c22cb6583a25616231c8a5a300000e3ff7a0684f7bc0100017cda05000000ad8e2e4bb1c467fb02000000\
         0004595a",
            "fd377a585a000004e6d6b446020021011c00000010cf58cce002d900605d00190c02b7378d96f3a6716493d35477a41ac1aeae21\
         2b0889a45a4b6e686e17113c5d189f43e9de3b8038ef79ca8a43cc96acd788281f763ab661d614ca32e76f20abaf3b9cfffa4ef4\
         72f6a263f69fea5c2774b472017d5640d4d31463d88600007b6a8b2fa7177a7100017cda05000000ad8e2e4bb1c467fb02000000\
         0004595a",
        ],
    ),
];

fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

#[test]
fn zstd_and_xz_are_read() {
    let config = config("compressed.toml", "client-ip");
    for (name, parts) in COMPRESSED {
        let [one, other] = parts.map(bytes);
        // Rotated logs are often concatenated.
        let log = file(&format!("access.{name}"), [one.clone(), other].concat());
        let whole = report(&["--config", &config, &log]);
        assert_eq!((&whole["log"]["lines"], &policy(&whole)["rejected"]), (&json!(20), &json!(0)), "{name}");
        let cut = file(&format!("cut.{name}"), &one[..one.len() / 2]);
        let output = sluice(&["replay", "--config", &config, &cut]);
        assert_eq!(output.status.code(), Some(1), "{name}");
        assert!(text(&output.stderr).contains("cannot be read"), "{}", text(&output.stderr));
        fs::remove_file(log).unwrap();
        fs::remove_file(cut).unwrap();
    }
    fs::remove_file(config).unwrap();
}

/// A proxy's address is not a client's, and a field that isn't a path shows that the fields have another order.
#[test]
fn proxies_and_wrong_orders_are_noted() {
    let line =
        |client: &str, path: &str| format!("{client} - - [02/Mar/2026:08:00:09 +0000] \"GET {path} HTTP/1.1\" 200 1\n");
    let config = config("proxy.toml", "client-ip");
    let log_of = |text: String| {
        let log = file("proxy.log", text);
        report(&["--config", &config, &log])["log"].take()
    };
    let has_hint =
        |log: &Value| log["hints"].to_string().contains("all requests are of 10.0.0.2, an address of a private");
    assert!(has_hint(&log_of(line("10.0.0.2", "/login").repeat(30))));
    assert!(!has_hint(&log_of(line("10.0.0.2", "/login").repeat(30) + &line("10.0.0.3", "/login"))));
    let log = log_of(line("203.0.113.7", "/login") + &line("203.0.113.7", "203.0.113.8"));
    assert_eq!((&log["requests"], &log["unreadable"]), (&json!(1), &json!(1)));
    assert!(log["first_unreadable"].to_string().contains("does not begin with a slash"), "{log}");
}
