/**
 * Loaded into every rank before its script. Tells the launcher with which error the rank ended, and ends the rank if
 * the launcher is gone (killed, or with its machine's session), so that no rank is left behind.
 */
import { toWire } from '../core/error-wire';
import { systemClock } from '../core/clock';
import type { RankReport } from './rank-report';

/** From SIGTERM to SIGKILL for a rank whose launcher is gone. */
const GRACE_MS = 5000;

function endWithLauncher(): void {
  signalOwnGroup('SIGTERM');
  systemClock.schedule(() => signalOwnGroup('SIGKILL'), GRACE_MS);
}

/** The launcher made this process the leader of a group of its own, where the system has groups. */
function signalOwnGroup(signal: NodeJS.Signals): void {
  process.kill(process.platform === 'win32' ? process.pid : -process.pid, signal);
}

if (process.send !== undefined) {
  process.once('disconnect', endWithLauncher);
  process.on('uncaughtExceptionMonitor', (error) => {
    const report: RankReport = { lockstepRankFailed: toWire(error) };
    if (process.connected) process.send?.(report);
  });
  // The channel alone must not keep a rank alive that is done.
  process.channel?.unref();
}
