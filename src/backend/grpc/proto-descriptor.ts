/** Generated from lockstep.proto by `npm run proto:update`: its descriptor, as proto-loader takes it. */
export const protoDescriptor: object = {
  nested: {
    lockstep: {
      nested: {
        v1: {
          nested: {
            Store: {
              methods: {
                Session: {
                  requestType: 'ClientMessage',
                  requestStream: true,
                  responseType: 'ServerMessage',
                  responseStream: true,
                },
              },
            },
            PeerLink: {
              methods: {
                Frames: {
                  requestType: 'RawBytes',
                  requestStream: true,
                  responseType: 'RawBytes',
                  responseStream: true,
                },
              },
            },
            RawBytes: { fields: {} },
            ClientMessage: {
              oneofs: { kind: { oneof: ['handshake', 'request', 'goodbye'] } },
              fields: {
                handshake: { type: 'bytes', id: 1 },
                request: { type: 'Request', id: 2 },
                goodbye: { type: 'Goodbye', id: 3 },
              },
            },
            ServerMessage: {
              oneofs: { kind: { oneof: ['handshake', 'response', 'refusal', 'goodbye'] } },
              fields: {
                handshake: { type: 'bytes', id: 1 },
                response: { type: 'Response', id: 2 },
                refusal: { type: 'Failure', id: 3 },
                goodbye: { type: 'Goodbye', id: 4 },
              },
            },
            Goodbye: { fields: {} },
            Request: {
              oneofs: {
                operation: {
                  oneof: [
                    'join',
                    'get',
                    'set',
                    'add',
                    'compareAndSet',
                    'wait',
                    'delete',
                    'numKeys',
                    'start',
                    'connected',
                  ],
                },
              },
              fields: {
                id: { type: 'uint32', id: 1 },
                timeoutMs: { type: 'double', id: 2 },
                join: { type: 'Join', id: 3 },
                get: { type: 'Get', id: 4 },
                set: { type: 'Set', id: 5 },
                add: { type: 'Add', id: 6 },
                compareAndSet: { type: 'CompareAndSet', id: 7 },
                wait: { type: 'Wait', id: 8 },
                delete: { type: 'Delete', id: 9 },
                numKeys: { type: 'NumKeys', id: 10 },
                start: { type: 'Start', id: 11 },
                connected: { type: 'Connected', id: 12 },
              },
            },
            Response: {
              oneofs: { result: { oneof: ['failure', 'members', 'value', 'done', 'number', 'flag', 'compared'] } },
              fields: {
                id: { type: 'uint32', id: 1 },
                failure: { type: 'Failure', id: 2 },
                members: { type: 'Members', id: 3 },
                value: { type: 'Value', id: 4 },
                done: { type: 'Done', id: 5 },
                number: { type: 'int64', id: 6 },
                flag: { type: 'bool', id: 7 },
                compared: { type: 'Compared', id: 8 },
              },
            },
            Join: { fields: { address: { type: 'PeerAddress', id: 1 } } },
            Start: { fields: {} },
            Connected: { fields: { failure: { type: 'Failure', id: 1 } } },
            Get: { fields: { key: { type: 'string', id: 1 } } },
            Set: { fields: { key: { type: 'string', id: 1 }, value: { type: 'bytes', id: 2 } } },
            Add: { fields: { key: { type: 'string', id: 1 }, amount: { type: 'int64', id: 2 } } },
            CompareAndSet: {
              oneofs: { _expected: { oneof: ['expected'] } },
              fields: {
                key: { type: 'string', id: 1 },
                expected: { type: 'bytes', id: 2, options: { proto3_optional: true } },
                desired: { type: 'bytes', id: 3 },
              },
            },
            Wait: { fields: { keys: { rule: 'repeated', type: 'string', id: 1 } } },
            Delete: { fields: { key: { type: 'string', id: 1 } } },
            NumKeys: { fields: { prefix: { type: 'string', id: 1 } } },
            Done: { fields: {} },
            Value: { fields: { value: { type: 'bytes', id: 1 } } },
            Compared: {
              oneofs: { _value: { oneof: ['value'] } },
              fields: {
                isSet: { type: 'bool', id: 1 },
                value: { type: 'bytes', id: 2, options: { proto3_optional: true } },
              },
            },
            Members: { fields: { addresses: { rule: 'repeated', type: 'PeerAddress', id: 1 } } },
            PeerAddress: {
              oneofs: {
                _grpc: { oneof: ['grpc'] },
                _unixSocket: { oneof: ['unixSocket'] },
                _tcpSocket: { oneof: ['tcpSocket'] },
              },
              fields: {
                rank: { type: 'uint32', id: 1 },
                hostId: { type: 'string', id: 2 },
                grpc: { type: 'string', id: 3, options: { proto3_optional: true } },
                unixSocket: { type: 'string', id: 4, options: { proto3_optional: true } },
                tcpSocket: { type: 'string', id: 5, options: { proto3_optional: true } },
              },
            },
            Failure: {
              fields: {
                code: { type: 'string', id: 1 },
                message: { type: 'string', id: 2 },
                ranks: { rule: 'repeated', type: 'uint32', id: 3 },
              },
            },
          },
        },
      },
    },
  },
};
