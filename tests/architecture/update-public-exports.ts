/** `npm run exports:update`: stores what src/ exports now as the list that the architecture test holds. */
import { writeFileSync } from 'node:fs';
import { diffExports, readPublicExports, readStoredExports, storedPath } from './public-exports';

const actual = readPublicExports();
const changes = diffExports(readStoredExports(), actual);
writeFileSync(storedPath, `${JSON.stringify(actual, undefined, 2)}\n`);
process.stdout.write(changes.length > 0 ? `${changes.join('\n')}\n` : 'no change\n');
