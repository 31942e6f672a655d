// Shows that the leaky bucket (as a meter) is the token bucket's mirror image: a level that rises by
// one with each request, leaks 10 per second and overflows at 20. Same test, same bounds.
//
//     cargo run --release -p tower-sluice-server -- --config k6/limits.toml
//     k6 run k6/leaky_bucket.js

import { bucketTest } from './token_bucket.js';

export const { options, setup, burst, flood, handleSummary } = bucketTest('leaky_bucket', '/leaky-bucket');
