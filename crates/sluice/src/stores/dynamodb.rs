//! `kind = "dynamodb"`, with a DynamoDB client that is configured by the machine's settings.

use std::sync::Arc;
use std::thread;

use aws_config::environment::EnvironmentVariableRegionProvider;
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::ProfileFileRegionProvider;
use aws_config::{BehaviorVersion, SdkConfig};
use aws_smithy_http_client::tls;
use tower_sluice_config::ConfigError;
use tower_sluice_config::store::{Store, StoreTable};

/// Opens a table's store, without a call to DynamoDB.
pub(super) fn open(table: &StoreTable<'_>) -> Result<Arc<dyn Store>, ConfigError> {
    let settings = settings();
    if settings.region().is_none() {
        let problem = "no region of AWS is known; set AWS_REGION, or region in the file ~/.aws/config";
        return Err(table.error("table", problem));
    }
    tower_sluice_dynamodb::file::opener(aws_sdk_dynamodb::Client::new(&settings))(table)
}

/// Region, endpoint and how to find the credentials, from the environment and the AWS files. The first call looks for
/// the credentials themselves.
fn settings() -> SdkConfig {
    // The region is not read from the machine's metadata service, because `sluice check` would wait for it outside AWS.
    let region = RegionProviderChain::first_try(EnvironmentVariableRegionProvider::new())
        .or_else(ProfileFileRegionProvider::new());
    let ciphers = tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring);
    let client = aws_smithy_http_client::Builder::new().tls_provider(ciphers).build_https();
    let loading = aws_config::defaults(BehaviorVersion::latest()).region(region).http_client(client).load();
    // On a separate thread, because the caller's may run the service already, and async code must not read files.
    let load = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime of one thread").block_on(loading)
    };
    thread::scope(|scope| scope.spawn(load).join()).expect("the settings of AWS can be read")
}
