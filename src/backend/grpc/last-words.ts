/**
 * What a process still says when an error that nobody caught is about to end it.
 *
 * [Note: last words] Between such an error and the end of the process no turn of the event loop comes, and none may be
 * added: the program's exit code, output and moment are its own. So only what a call writes before it returns can be
 * said. A node:net socket without a backlog hands a small frame to the kernel at once, and the kernel delivers it also
 * when the process is gone; so the socket plane carries last words. A TLS socket encrypts and writes at once too, but only
 * the first write of a turn: what follows a collective that was started in the same turn is lost. HTTP/2 writes in a later
 * turn, so the grpc plane carries none. Where nothing is heard, peers learn no more than that the connection has closed.
 */
import { asError } from '../../core/errors';
import { stderrLogger } from '../../core/logger';

type Speaker = (error: Error) => void;

/** One listener of the process for all its worlds; none while it has no world. */
const speakers = new Set<Speaker>();

function speak(thrown: unknown): void {
  // With a handler the error ends nothing, or ends the process in the handler's own way.
  if (process.listenerCount('uncaughtException') > 0 || process.hasUncaughtExceptionCaptureCallback()) return;
  for (const speaker of speakers) {
    try {
      speaker(asError(thrown));
    } catch (failure) {
      // What is thrown here would take the place of the error that ends the process.
      stderrLogger.warn(`the other ranks could not be told of an uncaught error: ${asError(failure).message}`);
    }
  }
}

/**
 * `speaker` is called, once, if an error that nobody caught is about to end this process; what it does has effect only as
 * far as it is done when it returns.
 *
 * @returns forgets it
 */
export function beforeFatalError(speaker: Speaker): () => void {
  if (speakers.size === 0) process.on('uncaughtExceptionMonitor', speak);
  speakers.add(speaker);
  return () => {
    speakers.delete(speaker);
    if (speakers.size === 0) process.off('uncaughtExceptionMonitor', speak);
  };
}
