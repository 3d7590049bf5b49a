import { describeBackend } from './backend-suite';
import { ProcessFactory } from './process-factory';

const factory = new ProcessFactory('socket');
afterAll(() => factory.close());

describeBackend('grpc, a process a rank, data plane socket', factory);
