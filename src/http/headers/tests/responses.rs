//! Which responses carry which fields, for which policies.

use super::*;
use crate::values::{PartitionKey, Quota};

#[test]
fn deciding_policies_are_listed_in_order() {
    let day = Terms::fixed_window(Quota::per_day(5_000));
    let second = Terms::bucket(Quota::per_second(10));
    let policies = [("per-second", Some(second)), ("hidden", None), ("day", Some(day))]
        .map(|(name, terms)| described(name, terms));
    let writer = Arc::new(Writer::new(&RateLimitFields::default(), policies).unwrap());
    let a = Decision::allow(10, 9);
    let b = Decision::allow(5_000, 77).with_reset_after(Duration::from_secs(60));
    let policy = r#"ratelimit-policy: "per-second";q=10;w=1, "day";q=5000;w=86400"#;
    assert_eq!(
        written(&writer, 200, &[], &[reading(0, &a), reading(1, &a), reading(2, &b)]),
        format!(r#"ratelimit: "per-second";r=9;t=1, "day";r=77;t=60; {policy}"#)
    );
    assert_eq!(written(&writer, 200, &[], &[reading(2, &b)]), format!(r#"ratelimit: "day";r=77;t=60; {policy}"#));
    // No advertised policy has decided, or no policy at all.
    assert_eq!(written(&writer, 200, &[], &[reading(1, &a)]), "");
    assert_eq!(written(&writer, 200, &[], &[]), "");
    assert_eq!(written(&writer, 103, &[], &[reading(0, &a)]), "");
    // An inner layer's members stay in front, even if it does not send policies.
    assert_eq!(
        written(&writer, 200, &[("ratelimit", r#""in";r=0;t=9"#)], &[reading(2, &b)]),
        format!(r#"ratelimit: "in";r=0;t=9, "day";r=77;t=60; {policy}"#)
    );
    assert_eq!(
        written(
            &writer,
            200,
            &[("ratelimit", r#""in";r=0;t=9"#), ("ratelimit-policy", r#""in";q=1;w=9"#)],
            &[reading(2, &b)]
        ),
        r#"ratelimit: "in";r=0;t=9, "day";r=77;t=60; ratelimit-policy: "in";q=1;w=9, "per-second";q=10;w=1, "day";q=5000;w=86400"#
    );
}

/// Regression: a tonic client dropped the responses from a layer with 100 policies, whose head was longer than 16 KiB.
#[test]
fn a_head_is_bounded() {
    let terms = Terms::fixed_window(Quota::per_day(Quota::MAX_UNITS));
    let decision = Decision::allow(Quota::MAX_UNITS, Quota::MAX_UNITS).with_reset_after(Duration::from_secs(86_400));
    for (count, length, least) in [(100, 64, 14), (3_000, 1, 20), (14, 64, 14), (9, 2_000, 0)] {
        let names: Vec<_> = (0..count).map(|number| format!("{number:a>length$}")).collect();
        let policies = names.iter().map(|name| described(name, Some(terms)));
        let fields = RateLimitFields::draft11().partition_key();
        let written = Writer::new(&fields, policies).map_or_else(String::new, |writer| {
            let mark = writer.mark(&PartitionKey::from("alice"));
            let readings: Vec<_> =
                (0..count).map(|policy| PolicyReading { mark, ..reading(policy, &decision) }).collect();
            written(&Arc::new(writer), 200, &[], &readings)
        });
        assert!(written.len() <= 3_072 + "ratelimit: ; ratelimit-policy: ".len(), "{count}: {}", written.len());
        // The first policies are listed, each in both fields.
        let listed = names.iter().take_while(|name| written.matches(&format!("\"{name}\"")).count() == 2).count();
        assert_eq!(written.matches("\";").count(), 2 * listed, "{written}");
        assert!(listed >= least, "{count}: {listed}");
    }
}

#[test]
fn exhausted_redirects_have_no_ratelimit() {
    let terms = Terms::fixed_window(Quota::per_minute(10));
    let left = |left| Decision::allow(10, left).with_reset_after(Duration::from_secs(9));
    let draft11 = writer_of(&RateLimitFields::draft11(), &[("p", terms)]);
    let policy = r#"ratelimit-policy: "p";q=10;w=60"#;
    assert_eq!(written(&draft11, 301, &[], &[reading(0, &left(0))]), policy);
    assert_eq!(written(&draft11, 301, &[], &[reading(0, &left(1))]), format!(r#"ratelimit: "p";r=1;t=9; {policy}"#));
    assert_eq!(written(&draft11, 200, &[], &[reading(0, &left(0))]), format!(r#"ratelimit: "p";r=0;t=9; {policy}"#));
    let draft07 = writer_of(&RateLimitFields::draft07(), &[("p", terms)]);
    assert_eq!(written(&draft07, 301, &[], &[reading(0, &left(0))]), "");
}

/// Three policies, by their periods.
const SECOND_MINUTE_HOUR: [(&str, Terms); 3] = [
    ("second", Terms::bucket(Quota::per_second(10))),
    ("minute", Terms::fixed_window(Quota::per_minute(100))),
    ("hour", Terms::fixed_window(Quota::per_hour(1_000))),
];

/// Decisions by [`SECOND_MINUTE_HOUR`]. The policy per minute is closest to exhaustion, because it has the smallest
/// share left.
fn minute_is_closest() -> [Decision; 3] {
    [
        Decision::allow(10, 5).with_reset_after(Duration::from_millis(500)),
        Decision::allow(100, 49).with_reset_after(Duration::from_millis(30_500)),
        Decision::allow(1_000, 600).with_reset_after(Duration::from_secs(1_800)),
    ]
}

/// The closest policy is nearest to exhaustion.
#[test]
fn older_fields_describe_the_closest_policy() {
    let decisions = minute_is_closest();
    let all: Vec<_> = decisions.iter().enumerate().map(|(policy, decision)| reading(policy, decision)).collect();
    let sent = |fields: RateLimitFields, readings: &[PolicyReading<'_>]| {
        written(&writer_of(&fields, &SECOND_MINUTE_HOUR), 200, &[], readings)
    };
    assert_eq!(
        sent(RateLimitFields::draft07(), &all),
        "ratelimit: limit=100, remaining=49, reset=31; ratelimit-policy: 100;w=60"
    );
    assert_eq!(
        sent(RateLimitFields::none().x_ratelimit(ResetForm::EpochSeconds), &all),
        "x-ratelimit-limit: 100; x-ratelimit-remaining: 49; x-ratelimit-reset: 1790000031"
    );
    assert_eq!(
        sent(RateLimitFields::none().x_ratelimit(ResetForm::DeltaSeconds), &all[..1]),
        "x-ratelimit-limit: 10; x-ratelimit-remaining: 5; x-ratelimit-reset: 1"
    );
}

/// It may admit more than its burst in the advertised window.
#[test]
fn full_buckets_are_not_nearly_exhausted() {
    let small = [
        ("second", Terms::bucket(Quota::per_second(100).burst(10))),
        ("minute", Terms::fixed_window(Quota::per_minute(100))),
    ];
    let (full, [_, minute, _]) = (Decision::allow(10, 10), minute_is_closest());
    assert_eq!(
        written(&writer_of(&RateLimitFields::draft07(), &small), 200, &[], &[reading(0, &full), reading(1, &minute)]),
        "ratelimit: limit=100, remaining=49, reset=31; ratelimit-policy: 100;w=60"
    );
}

/// Among them, the longest wait comes first.
#[test]
fn rejecting_policies_come_first() {
    let draft07 = writer_of(&RateLimitFields::draft07(), &SECOND_MINUTE_HOUR);
    let rejected = |left, wait| Decision::reject(1_000, left, wait).with_reset_after(Duration::from_secs(1_800));
    let empty = Decision::allow(100, 0).with_reset_after(Duration::from_secs(30));
    let short = rejected(3, Some(Duration::from_secs(5)));
    let long = rejected(3, Some(Duration::from_secs(6)));
    let never = rejected(3, None);
    let state = |readings: &[PolicyReading<'_>]| written(&draft07, 429, &[], readings);
    assert_eq!(
        state(&[reading(1, &empty), reading(2, &short)]),
        "ratelimit: limit=1000, remaining=0, reset=5; ratelimit-policy: 1000;w=3600"
    );
    assert!(state(&[reading(1, &short), reading(2, &long)]).contains("limit=1000, remaining=0, reset=6"));
    assert!(state(&[reading(1, &never), reading(2, &long)]).contains("limit=100, remaining=0, reset=1800"));
}

#[test]
fn inner_fields_with_more_are_replaced() {
    let fields = RateLimitFields::none().x_ratelimit(ResetForm::EpochSeconds);
    let (writer, [_, minute, _]) = (writer_of(&fields, &SECOND_MINUTE_HOUR), minute_is_closest());
    let sent = |inner| {
        written(&writer, 200, &[("x-ratelimit-limit", "9"), ("x-ratelimit-remaining", inner)], &[reading(1, &minute)])
    };
    assert_eq!(sent("2"), "x-ratelimit-limit: 9; x-ratelimit-remaining: 2");
    assert!(sent("50").contains("remaining: 49; x-ratelimit-reset"));
}

#[test]
fn fields_are_sent_where_configured() {
    let terms = Terms::bucket(Quota::per_minute(10));
    let other = Terms::bucket(Quota::per_minute(1_000));
    let is_sent = |on: Advertise, decision: Decision| {
        let fields = RateLimitFields::draft11().x_ratelimit(ResetForm::DeltaSeconds).advertise(on);
        let policies = [described("p", Some(terms)), described("q", Some(other))];
        let Some(writer) = Writer::new(&fields, policies).map(Arc::new) else { return false };
        let plenty = Decision::allow(1_000, 999);
        !written(&writer, 200, &[], &[reading(0, &decision), reading(1, &plenty)]).is_empty()
    };
    let rejected = Decision::reject(10, 0, Some(Duration::from_secs(6)));
    for on in [Advertise::Always, Advertise::Rejected, Advertise::Below { percent: 20 }] {
        assert!(is_sent(on, rejected), "{on:?}");
    }
    assert!(is_sent(Advertise::Always, Decision::allow(10, 10)));
    assert!(!is_sent(Advertise::Rejected, Decision::allow(10, 0)));
    assert!(!is_sent(Advertise::Below { percent: 20 }, Decision::allow(10, 2)));
    assert!(is_sent(Advertise::Below { percent: 20 }, Decision::allow(10, 1)));
    assert!(!is_sent(Advertise::Never, rejected));

    // A policy that is not advertised, such as a shadow, does not count.
    let on_rejections = RateLimitFields::draft11().advertise(Advertise::Rejected);
    let beside_a_shadow =
        Arc::new(Writer::new(&on_rejections, [described("p", Some(terms)), described("shadow", None)]).unwrap());
    let fine = Decision::allow(10, 10);
    assert_eq!(written(&beside_a_shadow, 200, &[], &[reading(0, &fine), reading(1, &rejected)]), "");

    let is_silent = |fields: RateLimitFields| Writer::new(&fields, [described("p", Some(terms))]).is_none();
    assert!(is_silent(RateLimitFields::none()) && is_silent(RateLimitFields::default().advertise(Advertise::Never)));
    assert!(!is_silent(RateLimitFields::none().x_ratelimit(ResetForm::DeltaSeconds)));
    assert!(Writer::new(&RateLimitFields::default(), [described("p", None)]).is_none());
}

#[test]
fn partition_keys_are_hashed_and_uncached() {
    let terms = Terms::bucket(Quota::per_minute(10));
    let keyed = writer_of(&RateLimitFields::draft11().partition_key_by([7; 16]), &[("p", terms)]);
    let decision = Decision::allow(10, 9).with_reset_after(Duration::from_secs(6));
    let mark = keyed.mark(&PartitionKey::from("alice"));
    assert!(mark.is_some());
    let readings = [PolicyReading { mark, ..reading(0, &decision) }];
    let state = |lines: &[(&'static str, &'static str)]| {
        let all = written(&keyed, 200, lines, &readings);
        all.split("; ").find_map(|line| line.strip_prefix("ratelimit: ")).unwrap().to_owned()
    };
    let private = state(&[("cache-control", "private, max-age=60")]);
    let parameters = &members(&private).unwrap()[0].1;
    assert!(matches!(&parameters[..], [_, _, (key, GenericBareItem::ByteSequence(mark))]
        if key == "pk" && mark.len() == 8));
    assert_eq!(state(&[("cache-control", "public")]), r#""p";r=9;t=54"#);

    assert!(writer_of(&RateLimitFields::draft11(), &[("p", terms)]).mark(&PartitionKey::SHARED).is_none());
    let random = writer_of(&RateLimitFields::draft11().partition_key(), &[("p", terms)]);
    assert_ne!(random.mark(&PartitionKey::from("alice")), mark);
    assert!(!format!("{:?}", RateLimitFields::draft11().partition_key_by([77; 16])).contains("77"));
}

#[test]
fn all_names_are_exposed() {
    let names = EXPOSED_HEADERS.map(|name| name.to_string());
    assert_eq!(
        names.join(", "),
        "retry-after, ratelimit, ratelimit-policy, x-ratelimit-limit, x-ratelimit-remaining, x-ratelimit-reset, \
         x-rate-limited-for, retry-after-ms, grpc-status, grpc-message, grpc-status-details-bin, grpc-retry-pushback-ms"
    );
}

/// `HeaderMap` has room for 24,576 names, and panics if one more is inserted, so further fields are left out.
#[test]
fn a_full_response_has_no_room() {
    let mut full = HeaderMap::new();
    for i in 0.. {
        if full.try_insert(HeaderName::try_from(format!("x-{i}")).unwrap(), HeaderValue::from_static("")).is_err() {
            break;
        }
    }
    let names = full.len();
    let decision = Decision::allow(10, 9);
    for fields in [RateLimitFields::draft11(), RateLimitFields::draft07()] {
        let fields = fields.x_ratelimit(ResetForm::DeltaSeconds);
        let writer = writer_of(&fields, &[("p", Terms::bucket(Quota::per_minute(10)))]);
        writer.write(StatusCode::OK, &mut full, [reading(0, &decision)].into_iter(), at_2026);
    }
    WaitFields::new().retry_after_ms().write(&mut full, Duration::from_secs(1), at_2026);
    append_server_timing(&mut full, Duration::from_secs(1));
    assert_eq!(full.len(), names);
}

/// We do not know when a request will be over, so no time is advertised. Older fields cannot express that.
#[test]
fn in_flight_units_have_no_time() {
    let terms = [("in-flight", Terms::concurrency(4)), ("rate", Terms::bucket(Quota::per_second(10)))];
    let writer = writer_of(&RateLimitFields::default(), &terms);
    let policies = r#"ratelimit-policy: "in-flight";q=4;qu="concurrent-requests", "rate";q=10;w=1"#;
    let some = Decision::allow(4, 1);
    let rate = Decision::allow(10, 9);
    for (decision, left) in [(some, 1), (Decision::reject_until_released(4, 1), 0)] {
        assert_eq!(
            written(&writer, 200, &[], &[reading(0, &decision), reading(1, &rate)]),
            format!(r#"ratelimit: "in-flight";r={left}, "rate";r=9;t=1; {policies}"#)
        );
    }
    let alone = writer_of(&RateLimitFields::default(), &terms[..1]);
    assert_eq!(
        written(&alone, 429, &[], &[reading(0, &Decision::reject_until_released(4, 0))]),
        r#"ratelimit: "in-flight";r=0; ratelimit-policy: "in-flight";q=4;qu="concurrent-requests""#
    );
    let draft07 = RateLimitFields::draft07().x_ratelimit(ResetForm::DeltaSeconds);
    assert_eq!(written(&writer_of(&draft07, &terms[..1]), 200, &[], &[reading(0, &some)]), "");
    let beside = written(&writer_of(&draft07, &terms), 200, &[], &[reading(0, &some), reading(1, &rate)]);
    assert!(beside.contains("ratelimit: limit=10, remaining=9, reset=1"), "{beside}");
}

#[test]
fn byte_quotas_have_their_unit() {
    let day = Terms::fixed_window(Quota::per_day(1_000_000));
    let bytes = Described { unit: QuotaUnit::ContentBytes, ..described("bytes", Some(day)) };
    let writer = Arc::new(Writer::new(&RateLimitFields::default(), [bytes]).unwrap());
    let decision = Decision::allow(1_000_000, 5).with_reset_after(Duration::from_secs(60));
    assert_eq!(
        written(&writer, 200, &[], &[reading(0, &decision)]),
        r#"ratelimit: "bytes";r=5;t=60; ratelimit-policy: "bytes";q=1000000;qu="content-bytes";w=86400"#
    );
}

#[test]
fn conditional_policies_are_listed_after_deciding() {
    let terms = Some(Terms::bucket(Quota::per_second(10)));
    let conditional = |name| Described { is_conditional: true, ..described(name, terms) };
    let all = r#""all";q=10;w=1"#;
    let writes = r#""writes";q=10;w=1"#;
    let decision = Decision::allow(10, 9);
    for fields in [RateLimitFields::default(), RateLimitFields::default().partition_key()] {
        let writer = Arc::new(Writer::new(&fields, [described("all", terms), conditional("writes")]).unwrap());
        let listed = |readings: &[_]| written(&writer, 200, &[], readings);
        let both = listed(&[reading(0, &decision), reading(1, &decision)]);
        assert!(both.ends_with(&format!("ratelimit-policy: {all}, {writes}")), "{both}");
        let one = listed(&[reading(0, &decision)]);
        assert_eq!(one, format!(r#"ratelimit: "all";r=9;t=1; ratelimit-policy: {all}"#));
        // A policy without a condition applies even if it was not asked because the other one rejects.
        let other = listed(&[reading(1, &decision)]);
        assert_eq!(other, format!(r#"ratelimit: "writes";r=9;t=1; ratelimit-policy: {all}, {writes}"#));
        assert_eq!(listed(&[]), "");
    }
    let alone = Arc::new(Writer::new(&RateLimitFields::default(), [conditional("writes")]).unwrap());
    let one = written(&alone, 200, &[], &[reading(0, &decision)]);
    assert_eq!(one, format!(r#"ratelimit: "writes";r=9;t=1; ratelimit-policy: {writes}"#));
}
