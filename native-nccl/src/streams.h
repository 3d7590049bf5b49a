// The streams of a device. All are non-blocking ones: nothing runs on the null stream, which waits for every other.
#pragma once

namespace lockstep {

// One stream for the collectives of all communicators: then ranks that issue those of two communicators in different
// orders meet their timeout always, instead of once in a while.
enum Stream { compute_stream, comm_stream, copy_in_stream, copy_out_stream, stream_count };

}  // namespace lockstep
