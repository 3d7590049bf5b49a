/** Generates src/backend/grpc/proto-descriptor.ts from lockstep.proto; `npm run proto:update` runs it. */
import { readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';

const folder = join(__dirname, '..', '..', '..', 'src', 'backend', 'grpc');

/** protobufjs is a dependency of proto-loader, not of ours, so it is looked up from there. */
interface Protobuf {
  parse(text: string, options: { readonly keepCase: boolean }): { readonly root: { toJSON(): object } };
}
const protobuf = createRequire(require.resolve('@grpc/proto-loader'))('protobufjs') as Protobuf;

export function generateDescriptor(): object {
  const text = readFileSync(join(folder, 'lockstep.proto'), 'utf8');
  return protobuf.parse(text, { keepCase: false }).root.toJSON();
}

if (require.main === module) {
  const lines = [
    '/** Generated from lockstep.proto by `npm run proto:update`: its descriptor, as proto-loader takes it. */',
    `export const protoDescriptor: object = ${JSON.stringify(generateDescriptor())};`,
  ];
  writeFileSync(join(folder, 'proto-descriptor.ts'), lines.join('\n'));
}
