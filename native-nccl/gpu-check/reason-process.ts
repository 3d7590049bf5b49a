/** Prints, as JSON, why NCCL is not available with the environment of this process. */
import { ncclUnavailableReason } from '../../src/backend/nccl/availability';

process.stdout.write(`${JSON.stringify({ reason: ncclUnavailableReason() })}\n`);
