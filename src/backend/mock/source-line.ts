/** Where in the user's program a call was made. */
import { dirname, isAbsolute, relative, sep } from 'node:path';

/** Frames that are looked through for one outside Lockstep: a hook of DDP calls a collective a dozen frames deep. */
const MAX_FRAMES = 20;

/** Our own frames lie below this folder: src/ here, dist/ in the package. */
const LIBRARY_ROOT = dirname(dirname(__dirname)) + sep;

/** A stack that is formatted only when somebody asks: capturing costs about a microsecond, formatting a hundred. */
export class CallSite {
  readonly stack?: string;

  /** The stack of whoever calls this. */
  static capture(): CallSite {
    const callSite = new CallSite();
    const limit = Error.stackTraceLimit;
    Error.stackTraceLimit = MAX_FRAMES;
    Error.captureStackTrace(callSite);
    Error.stackTraceLimit = limit;
    return callSite;
  }

  /** As `src/train.ts:12:5`; our own outermost frame, as `lockstep/ddp/ddp.ts:9:3`, where no frame of the user's is near. */
  get sourceLine(): string | undefined {
    let outermost: string | undefined;
    for (const frame of (this.stack ?? '').split('\n').slice(1)) {
      const place = placeOf(frame);
      if (place === undefined || isNodes(place)) continue;
      if (!place.startsWith(LIBRARY_ROOT)) return shorten(place);
      outermost = `lockstep/${place.slice(LIBRARY_ROOT.length)}`;
    }
    return outermost;
  }
}

/** `at async train (/home/me/train.ts:12:5)` gives `/home/me/train.ts:12:5`. */
function placeOf(frame: string): string | undefined {
  const match = /\(?((?:file:\/\/)?[^()\s][^()]*:\d+:\d+)\)?$/.exec(frame.replace(/^\s*at (async )?/, '').trim());
  return match?.[1]?.replace(/^file:\/\//, '');
}

function isNodes(place: string): boolean {
  return place.startsWith('node:') || place.startsWith('internal/');
}

function shorten(place: string): string {
  if (!isAbsolute(place)) return place;
  const short = relative(process.cwd(), place);
  return short.startsWith('..') ? place : short;
}
