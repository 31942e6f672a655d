//! Optional white space around a field value is not part of it (RFC 9110, section 5.5). This holds over HTTP/2, too.

use std::collections::HashSet;

use http::Version;
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::key::HeaderKey;
use tower_sluice::{Policy, Quota, RateLimitLayer};

use super::Admitted;
use super::mounts::Mount;
use super::wire::Spelled;

fn by_api_key() -> RateLimitLayer {
    let by_key = Policy::new("per-key", TokenBucket::new(Quota::per_day(1))).key(HeaderKey::from_static("x-api-key"));
    RateLimitLayer::new(by_key)
}

/// Distinct combinations of spaces and tabs around `value`.
fn spellings(value: &str, count: usize) -> HashSet<String> {
    let blank = |number: usize| (0..number.ilog2()).map(|bit| [' ', '\t'][number >> bit & 1]).collect::<String>();
    (1..)
        .flat_map(|end| (1..=end).map(move |start| (start, end)))
        .take(count)
        .map(|(start, end)| blank(start) + value + &blank(end))
        .collect()
}

#[tokio::test]
async fn fifty_spellings_are_one_api_key() {
    let spellings = spellings("secret", 50);
    assert_eq!(spellings.len(), 50);
    for mount in [Mount::RouterLayer, Mount::Tonic, Mount::Hyper] {
        for version in [Version::HTTP_11, Version::HTTP_2] {
            let admitted = Admitted::default();
            let address = mount.serve(by_api_key(), &admitted).await;
            for spelling in &spellings {
                Spelled::new("GET", &[("x-api-key", spelling)]).ask(address, version).await.unwrap();
            }
            assert_eq!(admitted.count(), 1, "{mount:?}, {version:?}");
        }
    }
}

#[tokio::test]
async fn a_blank_api_key_is_missing() {
    let admitted = Admitted::default();
    let address = Mount::Hyper.serve(by_api_key(), &admitted).await;
    for version in [Version::HTTP_11, Version::HTTP_2] {
        for blank in ["", " ", "\t", " \t "] {
            let answer = Spelled::new("GET", &[("x-api-key", blank)]).ask(address, version).await.unwrap();
            assert_eq!(answer.status, 400, "{version:?}: {blank:?}");
        }
    }
    assert_eq!(admitted.count(), 0);
}
