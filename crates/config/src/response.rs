//! `[response]`: the fields and the rejections that clients get.

use std::time::Duration;

use toml::Spanned;

use super::error::ConfigError;
use super::format::{NamedValue, RawResponse};
use super::source::SourceText;
use super::value::{duration, set_if_some};
use tower_sluice::grpc::GrpcStatus;
use tower_sluice::headers::{Advertise, RateLimitFields, ResetForm};
use tower_sluice::layer::RateLimitLayerBuilder;
use tower_sluice::rejection::RejectionFormat;

/// The responses that clients get. If a setting is absent, the layer's default holds.
#[derive(Clone, Copy, Default)]
#[cfg_attr(test, derive(Debug, PartialEq))]
pub(crate) struct ResponseSettings {
    fields: Option<NamedValue<RateLimitFields>>,
    x_ratelimit: Option<NamedValue<Option<ResetForm>>>,
    advertise: Option<Advertise>,
    rejection_format: Option<NamedValue<RejectionFormat>>,
    grpc_status: Option<NamedValue<GrpcStatus>>,
    retry_jitter: Option<Duration>,
}

impl ResponseSettings {
    pub(crate) fn parse(source: &SourceText<'_>, raw: &RawResponse) -> Result<Self, ConfigError> {
        Ok(Self {
            fields: raw.fields,
            x_ratelimit: raw.x_ratelimit,
            advertise: raw.advertise.as_ref().map(|text| advertise(source, text)).transpose()?,
            rejection_format: raw.rejection_format,
            grpc_status: raw.grpc_status,
            retry_jitter: raw.retry_jitter.as_ref().map(|time| duration(source, "retry-jitter", time)).transpose()?,
        })
    }

    /// Takes absent settings from `general`.
    pub(crate) fn or(self, general: Self) -> Self {
        Self {
            fields: self.fields.or(general.fields),
            x_ratelimit: self.x_ratelimit.or(general.x_ratelimit),
            advertise: self.advertise.or(general.advertise),
            rejection_format: self.rejection_format.or(general.rejection_format),
            grpc_status: self.grpc_status.or(general.grpc_status),
            retry_jitter: self.retry_jitter.or(general.retry_jitter),
        }
    }

    pub(crate) fn apply_to(self, builder: RateLimitLayerBuilder) -> RateLimitLayerBuilder {
        let fields = self.fields.map_or_else(RateLimitFields::default, NamedValue::value);
        let fields = set_if_some(fields, self.x_ratelimit.and_then(NamedValue::value), RateLimitFields::x_ratelimit);
        builder
            .fields(fields.advertise(self.advertise.unwrap_or_default()))
            .rejection_format(&self.rejection_format.map_or_else(RejectionFormat::default, NamedValue::value))
            .grpc_status(self.grpc_status.map_or_else(GrpcStatus::default, NamedValue::value))
            .retry_jitter(self.retry_jitter.unwrap_or_default())
    }
}

/// Parses `advertise`.
fn advertise(source: &SourceText<'_>, text: &Spanned<String>) -> Result<Advertise, ConfigError> {
    match text.get_ref().as_str() {
        "always" => Ok(Advertise::Always),
        "rejected" => Ok(Advertise::Rejected),
        "never" => Ok(Advertise::Never),
        other => below(other).map(|percent| Advertise::Below { percent }).ok_or_else(|| {
            let problem = format!(
                "advertise = \"{other}\" is not known; write always, rejected, never, or below-20% (or another percentage up to 100)"
            );
            source.error(&text.span(), problem)
        }),
    }
}

/// Parses `below-20%`, with any whole percentage up to 100.
fn below(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("below-")?.strip_suffix('%')?;
    // `parse` would accept a sign.
    let is_unsigned = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|percent| is_unsigned && *percent <= 100)
}
