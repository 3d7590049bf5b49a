import { readFileSync } from 'node:fs';
import { join } from 'node:path';

const folder = process.env['LOCKSTEP_GOLDEN'] ?? join(__dirname, '..', 'fixtures', 'golden');

/** A file of golden vectors, parsed; LOCKSTEP_GOLDEN names another folder of the same form. */
export function readGolden<Shape>(file: string): Shape {
  return JSON.parse(readFileSync(join(folder, file), 'utf8')) as Shape;
}
