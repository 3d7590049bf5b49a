import { describeBackend } from './backend-suite';
import { ProcessFactory } from './process-factory';

const factory = new ProcessFactory('grpc');
afterAll(() => factory.close());

describeBackend('grpc, a process a rank, data plane grpc', factory);
