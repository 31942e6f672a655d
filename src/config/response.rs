//! `[response]`: the fields and the rejections that clients get.

use std::time::Duration;

use toml::Spanned;

use super::error::ConfigError;
use super::policy::duration;
use super::raw::{FieldsName, GrpcStatusName, RawResponse, RejectionFormatName, ResetName};
use super::source::Source;
use crate::http::grpc::GrpcStatus;
use crate::http::headers::{Advertise, RateLimitFields, ResetForm};
use crate::http::{RateLimitLayerBuilder, RejectionFormat};

/// The responses that clients get; where a setting is absent, the layer's default holds.
#[derive(Clone, Copy, Default)]
#[cfg_attr(test, derive(Debug, PartialEq))]
pub(super) struct ResponseSettings {
    fields: Option<FieldsName>,
    x_ratelimit: Option<ResetName>,
    advertise: Option<Advertise>,
    rejection_format: Option<RejectionFormatName>,
    grpc_status: Option<GrpcStatusName>,
    retry_jitter: Option<Duration>,
}

impl ResponseSettings {
    pub(super) fn parse(source: &Source<'_>, raw: &RawResponse) -> Result<Self, ConfigError> {
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
    pub(super) fn or(self, general: Self) -> Self {
        Self {
            fields: self.fields.or(general.fields),
            x_ratelimit: self.x_ratelimit.or(general.x_ratelimit),
            advertise: self.advertise.or(general.advertise),
            rejection_format: self.rejection_format.or(general.rejection_format),
            grpc_status: self.grpc_status.or(general.grpc_status),
            retry_jitter: self.retry_jitter.or(general.retry_jitter),
        }
    }

    pub(super) fn apply_to(self, builder: RateLimitLayerBuilder) -> RateLimitLayerBuilder {
        let fields = match self.fields {
            None => RateLimitFields::default(),
            Some(FieldsName::Draft11) => RateLimitFields::draft11(),
            Some(FieldsName::Draft07) => RateLimitFields::draft07(),
            Some(FieldsName::None) => RateLimitFields::none(),
        };
        let fields = match self.x_ratelimit {
            None | Some(ResetName::None) => fields,
            Some(ResetName::EpochSeconds) => fields.x_ratelimit(ResetForm::EpochSeconds),
            Some(ResetName::DeltaSeconds) => fields.x_ratelimit(ResetForm::DeltaSeconds),
        };
        let rejection_format = match self.rejection_format {
            None => RejectionFormat::default(),
            Some(RejectionFormatName::Problem) => RejectionFormat::Problem,
            Some(RejectionFormatName::Text) => RejectionFormat::Text,
            Some(RejectionFormatName::Empty) => RejectionFormat::Empty,
        };
        let grpc_status = match self.grpc_status {
            None => GrpcStatus::default(),
            Some(GrpcStatusName::ResourceExhausted) => GrpcStatus::ResourceExhausted,
            Some(GrpcStatusName::Unavailable) => GrpcStatus::Unavailable,
        };
        builder
            .fields(fields.advertise(self.advertise.unwrap_or_default()))
            .rejection_format(&rejection_format)
            .grpc_status(grpc_status)
            .retry_jitter(self.retry_jitter.unwrap_or_default())
    }
}

/// Parses `advertise`.
fn advertise(source: &Source<'_>, text: &Spanned<String>) -> Result<Advertise, ConfigError> {
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
