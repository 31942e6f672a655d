//! The file from `sluice init llm`, as Envoy asks it.

use std::process::Command;

use crate::proto::{Code, RateLimitRequest};
use crate::service::{Client, Service, descriptor, request};

const REQUEST: [(&str, &str); 2] = [("what", "request"), ("user", "ada")];
const TOKENS: [(&str, &str); 2] = [("what", "tokens"), ("user", "ada")];

/// Before the request: charges one request, and looks at the tokens.
fn before() -> RateLimitRequest {
    let mut look = descriptor(&TOKENS);
    look.hits_addend = Some(0);
    RateLimitRequest { descriptors: vec![descriptor(&REQUEST), look], ..request("llm", &[]) }
}

/// Reports the tokens when the answer has ended.
async fn report(client: &mut Client, tokens: u64) {
    let mut spent = descriptor(&[TOKENS[0], TOKENS[1], ("sluice-report", "1")]);
    spent.hits_addend = Some(tokens);
    let asked = RateLimitRequest { descriptors: vec![spent], ..request("llm", &[]) };
    assert_eq!(client.ask(asked).await.unwrap().overall_code(), Code::Ok);
}

#[tokio::test]
async fn models_have_token_and_request_limits() {
    let file = Command::new(env!("CARGO_BIN_EXE_sluice")).args(["init", "llm"]).output().unwrap();
    let service = Service::start(std::str::from_utf8(&file.stdout).unwrap());
    let mut client = service.connect().await;
    assert_eq!(client.ask(before()).await.unwrap().overall_code(), Code::Ok);
    report(&mut client, 15_000).await;
    assert_eq!(client.ask(before()).await.unwrap().overall_code(), Code::Ok);
    report(&mut client, 15_000).await;
    let response = client.ask(before()).await.unwrap();
    assert_eq!(response.overall_code(), Code::OverLimit);
    let codes: Vec<_> = response.statuses.iter().map(|status| status.code()).collect();
    assert_eq!(codes, [Code::Ok, Code::OverLimit]);

    // Another user has tokens, and ten requests at once.
    let other = request("llm", &[&[("what", "request"), ("user", "bob")]]);
    let mut admitted = 0;
    while client.ask(other.clone()).await.unwrap().overall_code() == Code::Ok {
        admitted += 1;
    }
    // One more token has flowed in if the machine was busy for two seconds.
    assert!((10..20).contains(&admitted), "{admitted}");
}
