use super::*;
use crate::rules::Unit;
use crate::rules::envoy::examples::EXAMPLES;
use crate::serve::domains::Store;
use crate::serve::rls::proto::Entry;
use crate::serve::sources::Texts;
use std::time::Instant;

use tower_sluice_config::Config;

use self::timing::some_attempt_async;

#[path = "../../../../../tests/support/timing.rs"]
#[allow(dead_code, missing_docs, unreachable_pub, reason = "one of them is used")]
mod timing;

fn limits(texts: &Texts) -> Limits {
    Limits::read(Config::reader(), texts, Store::Memory { max_keys: 64 }).unwrap_or_else(|error| panic!("{error}"))
}

fn envoy(file: &str) -> Limits {
    limits(&Texts { envoy: vec![("limits.yaml".to_owned(), file.to_owned())], ..Texts::default() })
}

fn limitador(file: &str) -> Limits {
    limits(&Texts { limitador: vec![("limits.yaml".to_owned(), file.to_owned())], ..Texts::default() })
}

/// Reads `key=value, key=value`.
fn descriptor(text: &str) -> RateLimitDescriptor {
    let entry = |entry: &str| {
        let (key, value) = entry.split_once('=').unwrap();
        Entry::new(key, value)
    };
    let entries = text.split(", ").filter(|text| !text.is_empty()).map(entry).collect();
    RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }
}

/// A descriptor with a number of hits.
fn hits(text: &str, hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(hits), ..descriptor(text) }
}

async fn ask(limits: &Limits, domain: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitResponse {
    decide(limits, RateLimitRequest { domain: domain.to_owned(), descriptors, hits_addend: 0 }).await.unwrap()
}

fn codes(response: &RateLimitResponse) -> Vec<Code> {
    response.statuses.iter().map(DescriptorStatus::code).collect()
}

/// The limit in `NAME LIMIT/SECONDS shadow for KEY`, and whether it is enforced.
fn expected(text: &str) -> Option<(u32, bool)> {
    let mut words = text.split(' ').skip(1);
    let (limit, _) = words.next()?.split_once('/')?;
    Some((limit.parse().unwrap(), words.next() != Some("shadow")))
}

/// A request whose hits equal the limit is admitted, and a request with one more hit is rejected. So no time passes
/// between them.
#[tokio::test]
async fn the_examples_are_limited_as_written() {
    let mut limited = 0;
    for example in EXAMPLES {
        let domain = example.file.lines().find_map(|line| line.strip_prefix("domain: ")).unwrap();
        for request in example.requests {
            let limits = envoy(example.file);
            let all = |more: u64| {
                let descriptor =
                    |&(text, limit): &(&str, &str)| hits(text, expected(limit).map_or(1, |it| it.0.into()) + more);
                request.iter().map(descriptor).collect::<Vec<_>>()
            };
            let what = format!("{}: {request:?}", example.title);
            let full = ask(&limits, domain, all(0)).await;
            let beyond = ask(&envoy(example.file), domain, all(1)).await;
            let mut is_over = false;
            for (index, (_, limit)) in request.iter().enumerate() {
                let [full, beyond] = [&full, &beyond].map(|response| &response.statuses[index]);
                let Some((limit, is_enforced)) = expected(limit) else {
                    assert_eq!([full.code(), beyond.code()], [Code::Ok; 2], "{what}");
                    assert_eq!(full.limit_remaining == u32::MAX, limit.contains(" unlimited"), "{what}");
                    continue;
                };
                limited += 1;
                is_over |= is_enforced;
                let is_beyond = if is_enforced { Code::OverLimit } else { Code::Ok };
                assert_eq!(beyond.code(), is_beyond, "{what}");
                if limit > 0 {
                    assert_eq!((full.code(), full.limit_remaining), (Code::Ok, 0), "{what}");
                    assert_eq!(full.current_limit.as_ref().unwrap().requests_per_unit, limit, "{what}");
                }
            }
            assert_eq!(beyond.overall_code() == Code::OverLimit, is_over, "{what}");
        }
    }
    assert!(limited > 20, "{limited}");
}

const FILE: &str = "
domain: shop
descriptors:
  - {key: address, rate_limit: {unit: hour, requests_per_unit: 3, algorithm: token-bucket}}
  - {key: named, rate_limit: {name: calls, unit: day, requests_per_unit: 1}}
  - {key: closed, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: first, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: second, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: seen, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
";

/// The limits in `FILE`, for a domain that charges all descriptors or none.
fn all_or_none() -> Limits {
    envoy(&FILE.replace("domain: shop", "domain: shop\nall_or_none: true"))
}

/// A gateway looks before a request, and charges its tokens after the response.
#[tokio::test]
async fn an_excessive_cost_uses_up_the_limit() {
    let limits =
        envoy("{domain: shop, descriptors: [{key: tokens, rate_limit: {unit: year, requests_per_unit: 100}}]}");
    let tokens = |count| vec![hits("tokens=a", count)];
    let mut answers = 0;
    while ask(&limits, "shop", tokens(0)).await.overall_code() == Code::Ok {
        answers += 1;
        let charged = ask(&limits, "shop", tokens(30)).await;
        let left = 100_u32.saturating_sub(30 * answers);
        assert_eq!(charged.statuses[0].limit_remaining, left);
        assert_eq!(charged.overall_code() == Code::OverLimit, answers == 4);
    }
    assert_eq!(answers, 4);
    assert_eq!(ask(&limits, "shop", vec![hits("tokens=b", 0)]).await.overall_code(), Code::Ok);
}

#[tokio::test]
async fn a_full_descriptor_leaves_the_others_charged() {
    let limits = envoy(FILE);
    let both = || vec![descriptor("address=a"), descriptor("named=x")];
    for (left, is_over) in [(2, false), (1, true), (0, true)] {
        let response = ask(&limits, "shop", both()).await;
        assert_eq!((response.statuses[0].code(), response.statuses[0].limit_remaining), (Code::Ok, left));
        assert_eq!(response.overall_code() == Code::OverLimit, is_over);
        assert_eq!(response.raw_body.is_empty(), !is_over);
        assert_eq!(response.response_headers_to_add.iter().any(|field| field.key == "retry-after"), is_over);
    }
}

/// A bucket that is used up needs longer than a bucket with tokens.
#[tokio::test]
async fn a_wait_follows_the_last_charge() {
    let limits = envoy(FILE);
    ask(&limits, "shop", vec![hits("address=a", 2)]).await;
    let over = ask(&limits, "shop", vec![hits("address=a", 2)]).await;
    let wait = std::time::Duration::try_from(over.statuses[0].duration_until_reset.unwrap()).unwrap();
    // Two tokens at three per hour, and not one, because the last one was taken.
    assert!(wait > std::time::Duration::from_secs(30 * 60), "{wait:?}");
}

/// Envoy makes values from text that clients send.
#[tokio::test]
async fn invalid_text_is_limited() {
    let limits = envoy(FILE);
    let raw = |value: &[u8]| {
        let mut descriptor = descriptor("named=x");
        descriptor.entries[0].value = value.to_vec();
        vec![descriptor]
    };
    assert_eq!(ask(&limits, "shop", raw(b"b\xff")).await.overall_code(), Code::Ok);
    assert_eq!(ask(&limits, "shop", raw(b"b\xfe")).await.overall_code(), Code::OverLimit);
}

#[tokio::test]
async fn a_request_without_descriptors_is_an_error() {
    let limits = envoy(FILE);
    let request = RateLimitRequest { domain: "shop".to_owned(), descriptors: Vec::new(), hits_addend: 5 };
    let error = decide(&limits, request).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::InvalidArgument);
    assert!(error.message().contains("nothing is counted"), "{error}");
}

#[tokio::test]
async fn quotas_reject_only_together() {
    let limits = all_or_none();
    let all = || ["address=a", "first=x", "second=x"].map(descriptor).to_vec();
    let first = ask(&limits, "shop", all()).await;
    assert_eq!((first.overall_code(), codes(&first)), (Code::Ok, vec![Code::Ok; 3]));
    let second = ask(&limits, "shop", all()).await;
    assert_eq!((second.overall_code(), codes(&second)), (Code::Ok, vec![Code::Ok, Code::OverLimit, Code::Ok]));
    for _ in 0..3 {
        let third = ask(&limits, "shop", all()).await;
        assert_eq!(
            (third.overall_code(), codes(&third)),
            (Code::OverLimit, vec![Code::Ok, Code::OverLimit, Code::OverLimit])
        );
        // The others are not charged.
        assert_eq!(third.statuses[0].limit_remaining, 1);
    }
}

#[tokio::test]
async fn a_limit_keeps_its_name() {
    let limits = envoy(FILE);
    for (text, name) in [("named=x", "calls"), ("seen=x", "seen")] {
        let response = ask(&limits, "shop", vec![descriptor(text)]).await;
        assert_eq!(response.statuses[0].current_limit.as_ref().unwrap().name, name);
    }
}

#[tokio::test]
async fn zero_rejects_and_a_shadow_never() {
    let limits = envoy(FILE);
    let closed = ask(&limits, "shop", vec![descriptor("closed=x")]).await;
    assert_eq!((closed.overall_code(), closed.statuses[0].duration_until_reset), (Code::OverLimit, None));
    assert_eq!(closed.statuses[0].current_limit.as_ref().unwrap().requests_per_unit, 0);
    for left in [0, 0] {
        let seen = ask(&limits, "shop", vec![descriptor("seen=x")]).await;
        assert_eq!(
            (seen.overall_code(), codes(&seen), seen.statuses[0].limit_remaining),
            (Code::Ok, vec![Code::Ok], left)
        );
    }
}

#[tokio::test]
async fn a_brought_limit_replaces_the_files() {
    let limits = envoy(FILE);
    let brought = |limit| RateLimitDescriptor {
        limit: Some(proto::LimitOverride { requests_per_unit: limit, unit: Unit::Day.number() }),
        ..descriptor("address=b")
    };
    let mut admitted = 0;
    while ask(&limits, "shop", vec![brought(5)]).await.overall_code() == Code::Ok {
        admitted += 1;
    }
    assert_eq!(admitted, 5);
    let over = ask(&limits, "shop", vec![brought(5)]).await;
    let limit = over.statuses[0].current_limit.as_ref().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit, &*limit.name), (5, Unit::Day.number(), ""));
    assert_eq!(ask(&limits, "shop", vec![brought(6)]).await.overall_code(), Code::Ok, "what was used carries over");
    assert_eq!(ask(&limits, "shop", vec![brought(0)]).await.overall_code(), Code::OverLimit);
    // A limit with an unknown unit does not replace the file's.
    let mut unknown = brought(0);
    unknown.limit.as_mut().unwrap().unit = 0;
    unknown.hits_addend = Some(4);
    assert_eq!(ask(&limits, "shop", vec![unknown]).await.overall_code(), Code::OverLimit);
    assert_eq!(
        ask(&limits, "shop", vec![hits("address=b", 0)]).await.overall_code(),
        Code::OverLimit,
        "the file's own"
    );
}

/// If the two charges do not both fit, none is made.
#[tokio::test]
async fn a_repeated_descriptor_is_charged_twice() {
    let limits = all_or_none();
    let twice = || vec![descriptor("address=c"), descriptor("address=c")];
    let first = ask(&limits, "shop", twice()).await;
    assert_eq!((codes(&first), first.statuses[1].limit_remaining), (vec![Code::Ok; 2], 1));
    let second = ask(&limits, "shop", twice()).await;
    assert_eq!(codes(&second), [Code::OverLimit; 2]);
    assert_eq!(ask(&limits, "shop", vec![descriptor("address=c")]).await.overall_code(), Code::Ok);
}

/// A language model's tokens are known when its answer ends. Requests look before it.
#[tokio::test]
async fn reported_hits_use_up_the_rest() {
    let limits = envoy(FILE);
    let look = || vec![hits("address=d", 0)];
    let report = |count| vec![hits("address=d, sluice-report=1", count)];
    assert_eq!(ask(&limits, "shop", look()).await.overall_code(), Code::Ok);
    for (count, left) in [(2, 1), (9, 0), (9, 0)] {
        let reported = ask(&limits, "shop", report(count)).await;
        assert_eq!((reported.overall_code(), reported.statuses[0].limit_remaining), (Code::Ok, left));
    }
    assert_eq!(ask(&limits, "shop", look()).await.overall_code(), Code::OverLimit);
    assert_eq!(ask(&limits, "shop", report(0)).await.overall_code(), Code::Ok, "nothing was spent");
    // A full descriptor does not keep the others from being counted.
    let both = vec![hits("address=f, sluice-report=1", 2), descriptor("closed=x"), hits("address=e", 1)];
    let response = ask(&limits, "shop", both).await;
    assert_eq!(codes(&response), [Code::Ok, Code::OverLimit, Code::Ok]);
    let left = ask(&limits, "shop", vec![hits("address=f", 0), hits("address=e", 0)]).await;
    assert_eq!(left.statuses.iter().map(|status| status.limit_remaining).collect::<Vec<_>>(), [1, 2]);
}

#[tokio::test]
async fn every_matching_limitador_limit_is_charged() {
    let limits = limitador(
        "
- {namespace: shop, max_value: 2, seconds: 60, variables: ['descriptors[0].user']}
- {namespace: shop, max_value: 3, seconds: 60, conditions: [\"descriptors[0].method == 'GET'\"]}
",
    );
    let of = |user: &str| vec![descriptor(&format!("method=GET, user={user}"))];
    let codes = [ask(&limits, "shop", of("ada")).await, ask(&limits, "shop", of("ada")).await];
    assert!(codes.iter().all(|response| response.overall_code() == Code::Ok));
    assert_eq!(ask(&limits, "shop", of("ada")).await.overall_code(), Code::OverLimit);
    assert_eq!(ask(&limits, "shop", of("bob")).await.overall_code(), Code::Ok);
    assert_eq!(ask(&limits, "shop", of("eve")).await.overall_code(), Code::OverLimit, "of all together");
}

/// A domain is an error if the TOML has it, too, or if Redis cannot keep one of its limits.
#[test]
fn conflicts_with_toml_or_redis_are_errors() {
    let toml = "[[route]]\npath = \"/shop\"\n[[route.policy]]\nname = \"all\"\nalgorithm = \"token-bucket\"\nlimit = 1\nper = \"1s\"";
    let texts = |file: &str| Texts {
        config: Some(("limits.toml".to_owned(), toml.to_owned())),
        envoy: vec![("limits.yaml".to_owned(), file.to_owned())],
        ..Texts::default()
    };
    let read = |texts: &Texts, store| Limits::read(Config::reader(), texts, store).err().map(|error| error.to_string());
    let problem = read(&texts(FILE), Store::Memory { max_keys: 64 }).unwrap();
    assert!(problem.contains("give one of them another name"), "{problem}");
    // This does not connect.
    let redis = tower_sluice_redis::Redis::open("redis://127.0.0.1:1").unwrap();
    let slow = "domain: slow\ndescriptors:\n- key: a\n  rate_limit: {unit: year, requests_per_unit: 1, algorithm: token-bucket, burst: 99999}\n";
    assert_eq!(read(&texts(slow), Store::Memory { max_keys: 64 }), None);
    let problem = read(&texts(slow), Store::Redis(redis)).unwrap();
    assert!(problem.starts_with("limits.yaml:3: "), "{problem}");
}

#[tokio::test]
async fn a_changed_file_keeps_what_was_used() {
    let texts = |limit: u32| Texts {
        envoy: vec![(
            "limits.yaml".to_owned(),
            format!(
                "domain: shop\ndescriptors:\n  - {{key: a, rate_limit: {{unit: day, requests_per_unit: {limit}}}}}\n"
            ),
        )],
        ..Texts::default()
    };
    let limits = limits(&texts(2));
    assert_eq!(ask(&limits, "shop", vec![hits("a=x", 2)]).await.overall_code(), Code::Ok);
    limits.change(&texts(3)).unwrap();
    let response = ask(&limits, "shop", vec![descriptor("a=x")]).await;
    assert_eq!((response.overall_code(), response.statuses[0].limit_remaining), (Code::Ok, 0));
    assert_eq!(response.statuses[0].current_limit.as_ref().unwrap().requests_per_unit, 3);
    let error =
        limits.change(&Texts { envoy: vec![("x.yaml".to_owned(), "domain: ''".to_owned())], ..Texts::default() });
    assert!(error.is_err());
    assert_eq!(ask(&limits, "shop", vec![descriptor("a=x")]).await.overall_code(), Code::OverLimit);
}

/// After a limit was closed for a while, it gave full budgets, unless it was a fixed window.
#[tokio::test]
async fn reopening_a_limit_keeps_its_counts() {
    for algorithm in ["fixed-window", "sliding-window", "token-bucket", "leaky-bucket"] {
        let texts = |limit: u32| {
            let limit = format!("{{unit: year, requests_per_unit: {limit}, algorithm: {algorithm}}}");
            let text = format!("domain: shop\ndescriptors:\n  - {{key: a, rate_limit: {limit}}}\n");
            Texts { envoy: vec![("limits.yaml".to_owned(), text)], ..Texts::default() }
        };
        let limits = limits(&texts(3));
        assert_eq!(ask(&limits, "shop", vec![hits("a=x", 3)]).await.overall_code(), Code::Ok);
        for reopened in [3, 4] {
            limits.change(&texts(0)).unwrap();
            let response = ask(&limits, "shop", vec![descriptor("a=x")]).await;
            assert_eq!(response.overall_code(), Code::OverLimit, "{algorithm}");
            let current = response.statuses[0].current_limit.as_ref().unwrap();
            assert_eq!((current.requests_per_unit, current.unit), (0, Unit::Year.number()), "{algorithm}");
            limits.change(&texts(reopened)).unwrap();
            let look = ask(&limits, "shop", vec![hits("a=x", 0)]).await;
            assert_eq!(look.statuses[0].limit_remaining, reopened - 3, "{algorithm}");
        }
    }
}

/// A file in each format, with this number of rules.
fn files_of(rules: usize) -> Vec<(&'static str, Texts)> {
    let named = |name: &str, text: String| (name.to_owned(), text);
    let limit = "rate_limit: {unit: day, requests_per_unit: 4000000}";
    let by_value: String = (0..rules).map(|it| format!("  - {{key: tenant, value: t{it}, {limit}}}\n")).collect();
    let patterns: String = (0..rules).map(|it| format!("  - {{key: tenant, value: 't{it}*', {limit}}}\n")).collect();
    let limitador = |it| {
        format!(
            "- {{namespace: shop, max_value: 4000000, seconds: 60, variables: [user], conditions: [\"plan == 'gold'\", \
             \"tenant == 't{it}'\"]}}\n"
        )
    };
    let policy = |it| {
        format!(
            "[[route.policy]]\nname = \"t{it}\"\nalgorithm = \"fixed-window\"\nlimit = 4000000\nper = \"1h\"\nmax-keys = 64\n\
             key = [\"descriptor:plan=gold\", \"descriptor:tenant=t{it}\"]\n"
        )
    };
    let toml = "[[route]]\npath = \"/shop\"\n".to_owned() + &(0..rules).map(policy).collect::<String>();
    let envoy = |head: &str, descriptors: &str| Texts {
        envoy: vec![named("e.yaml", format!("domain: shop\n{head}descriptors:\n{descriptors}"))],
        ..Texts::default()
    };
    vec![
        ("tenant=t1", envoy("", &by_value)),
        ("tenant=t1", envoy("all_or_none: true\n", &by_value)),
        ("tenant=t1x", envoy("", &patterns)),
        (
            "plan=gold, tenant=t1, user=ada",
            Texts { limitador: vec![named("l.yaml", (0..rules).map(limitador).collect())], ..Texts::default() },
        ),
        ("plan=gold, tenant=t1", Texts { config: Some(named("c.toml", toml)), ..Texts::default() }),
    ]
}

/// Each rule in the domain was looked at.
#[tokio::test]
async fn many_rules_cost_no_more_than_few() {
    const REQUESTS: u32 = 100;
    for ((entries, few), (_, many)) in files_of(30).into_iter().zip(files_of(3_000)) {
        let (few, many) = (limits(&few), limits(&many));
        let time = async |limits: &Limits| {
            let begin = Instant::now();
            for _ in 0..REQUESTS {
                let response = ask(limits, "shop", vec![descriptor(entries)]).await;
                assert_eq!(response.overall_code(), Code::Ok);
                assert!(response.statuses[0].current_limit.is_some(), "{entries}");
            }
            begin.elapsed()
        };
        some_attempt_async("a hundred times as many rules take at most four times the time", async || {
            let (few, many) = (time(&few).await, time(&many).await);
            if many <= 4 * few { Ok(()) } else { Err(format!("{entries}: {few:?}, {many:?}")) }
        })
        .await;
    }
}

/// Otherwise, Envoy would advertise a limit that rejects nothing.
#[tokio::test]
async fn ties_report_the_limit_not_the_shadow() {
    let policy = |name: &str, per: &str, more: &str| {
        format!(
            "[[route.policy]]\nname = \"{name}\"\nalgorithm = \"fixed-window\"\nlimit = 3\nper = \"{per}\"\nkey = \
             \"descriptor:user\"\n{more}\n"
        )
    };
    let toml = ["[[route]]\npath = \"/shop\"\n", &policy("shadow", "1h", "shadow = true"), &policy("real", "24h", "")]
        .concat();
    let limits = limits(&Texts { config: Some(("limits.toml".to_owned(), toml)), ..Texts::default() });
    for _ in 0..4 {
        let response = ask(&limits, "shop", vec![descriptor("user=u")]).await;
        assert_eq!(response.statuses[0].current_limit.as_ref().unwrap().name, "real");
    }
}

/// `(shared)` was taken for a key's name.
#[tokio::test]
async fn operators_can_act_on_shared_keys() {
    let toml = "[[route]]\npath = \"/gold\"\n[[route.policy]]\nname = \"one\"\nalgorithm = \"fixed-window\"\nlimit = 3\nper = \
                \"1h\"\nkey = \"descriptor:plan=gold\"\n";
    let texts = Texts {
        config: Some(("limits.toml".to_owned(), toml.to_owned())),
        envoy: vec![(
            "limits.yaml".to_owned(),
            "{domain: shop, descriptors: [{key: plan, value: gold, rate_limit: {unit: hour, requests_per_unit: 3}}]}"
                .to_owned(),
        )],
        ..Texts::default()
    };
    let limits = limits(&texts);
    for (domain, operated) in [("gold", "/gold"), ("shop", "domain shop")] {
        let all = limits.operated();
        let (_, operated) = all.iter().find(|(name, _)| name == operated).unwrap();
        let policy = operated.policies()[0].name().to_owned();
        assert_eq!(ask(&limits, domain, vec![hits("plan=gold", 2)]).await.overall_code(), Code::Ok);
        assert_eq!(operated.peek(&policy, "(shared)").await.unwrap().decision().remaining(), 1);
        let _ = operated.ban(&policy, "(shared)", std::time::Duration::from_secs(60), "a test").await.unwrap();
        assert_eq!(ask(&limits, domain, vec![descriptor("plan=gold")]).await.overall_code(), Code::OverLimit);
    }
}
