//! How messages are read and written.

use tonic::codec::{BufferSettings, Codec};
use tonic_prost::{ProstDecoder, ProstEncoder};

use super::proto::{RateLimitRequest, RateLimitResponse};

/// Reads and writes messages in small buffers. The default ones, two of 8 KiB for each call, are too large for the
/// allocator's fast path.
#[derive(Clone, Copy, Debug)]
pub(super) struct SmallMessages;

/// Buffers grow for messages that are larger.
fn buffers() -> BufferSettings {
    const SIZE: usize = 512;
    const SEND_AT: usize = 32 * 1024;
    BufferSettings::new(SIZE, SEND_AT)
}

impl Codec for SmallMessages {
    type Encode = RateLimitResponse;
    type Decode = RateLimitRequest;
    type Encoder = ProstEncoder<RateLimitResponse>;
    type Decoder = ProstDecoder<RateLimitRequest>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(buffers())
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::new(buffers())
    }
}
