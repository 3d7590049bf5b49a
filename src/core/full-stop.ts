/** Messages are made of other messages, some of which end with a full stop. */

/** `text` for the middle of a sentence. */
export function withoutFullStop(text: string): string {
  return text.endsWith('.') && !text.endsWith('..') ? text.slice(0, -1) : text;
}

/** `text` as a sentence that another one may follow. */
export function withFullStop(text: string): string {
  return /[.!?]$/.test(text) ? text : `${text}.`;
}
