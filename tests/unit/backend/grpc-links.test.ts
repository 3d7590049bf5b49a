import { describeConnecting } from './connecting-suite';
import { describeLinks } from './link-suite';

describeLinks('grpc');
describeConnecting('grpc');
