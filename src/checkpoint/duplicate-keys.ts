/**
 * The first key that occurs twice in one object of a JSON text, which JSON.parse passes over: it keeps the last one.
 * @param text valid JSON
 */
export function duplicateKey(text: string): string | undefined {
  /** The keys of the open objects; undefined for an open array. */
  const open: (Set<string> | undefined)[] = [];
  let last = '';
  for (let i = 0; i < text.length; i++) {
    const character = text[i];
    if (character === '{') open.push(new Set());
    else if (character === '[') open.push(undefined);
    else if (character === '}' || character === ']') open.pop();
    else if (character === '"') {
      const end = endOfString(text, i);
      last = text.slice(i, end + 1);
      i = end;
    } else if (character === ':') {
      const keys = open[open.length - 1];
      const key = JSON.parse(last) as string; // with its escapes resolved
      if (keys?.has(key) === true) return key;
      keys?.add(key);
    }
  }
  return undefined;
}

/** The index of the quote that ends the string which begins at `start`. */
function endOfString(text: string, start: number): number {
  let i = start + 1;
  while (text[i] !== '"') i += text[i] === '\\' ? 2 : 1;
  return i;
}
