package internet

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// ChatMethod is the bidirectional gRPC stream that the origins serve: every
// StringValue that comes in goes back out.
const ChatMethod = "/internet.Chat/Talk"

func registerChat(server *grpc.Server, seen *seen) {
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "internet.Chat",
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName: "Talk", ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error { return talk(stream, seen) },
		}},
	}, nil)
}

func talk(stream grpc.ServerStream, seen *seen) error {
	seen.add(Visit{Path: ChatMethod})
	for {
		message := new(wrapperspb.StringValue)
		if err := stream.RecvMsg(message); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := stream.SendMsg(message); err != nil {
			return err
		}
	}
}

// Chat opens the stream on an established client connection.
func Chat(ctx context.Context, conn *grpc.ClientConn) (grpc.ClientStream, error) {
	return conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, ChatMethod)
}
