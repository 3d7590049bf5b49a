import { describeConnecting } from './connecting-suite';
import { describeLinks } from './link-suite';

describeLinks('socket');
describeConnecting('socket');
