package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
)

// Peer is who connected, as the kernel says (SO_PEERCRED of unix(7)): the
// credentials of when it called connect, in our own namespaces.
type Peer struct {
	PID  int
	UID  uint32
	GIDs []uint32 // the primary one first
	// pidfd is the process that connected, -1 where the kernel can't say.
	pidfd int
}

// Access says whose processes may use the socket. The zero value is our own uid.
type Access struct {
	// UID and GID allow one more user, and the members of one group.
	UID, GID *uint32
}

func (a Access) allows(p Peer, own uint32) bool {
	return p.UID == own || a.UID != nil && p.UID == *a.UID || a.GID != nil && slices.Contains(p.GIDs, *a.GID)
}

type permissionKey struct{}

// permit decides once, when a connection is accepted, whether its peer may use
// the socket: later, the process that connected may be gone and its number
// somebody else's. A nil error is permission; there is none without a decision.
func (s *Server) permit(ctx context.Context, conn net.Conn) context.Context {
	err := s.checkPeer(conn)
	return context.WithValue(ctx, permissionKey{}, permission{checked: true, refused: err})
}

// permission is the outcome of checkPeer; the zero value refuses.
type permission struct {
	checked bool
	refused error
}

func permissionOf(ctx context.Context) error {
	p, _ := ctx.Value(permissionKey{}).(permission)
	if !p.checked {
		return errors.New("the peer of this connection was not checked")
	}
	return p.refused
}

func (s *Server) checkPeer(conn net.Conn) error {
	if counted, ok := conn.(*countedConn); ok {
		conn = counted.Conn
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("a %T has no peer credentials", conn)
	}
	peer, err := peerOf(unixConn)
	if err != nil {
		return fmt.Errorf("the peer's credentials can't be read: %w", err)
	}
	defer peer.close()
	if !s.config.Access.allows(peer, s.uid) {
		return fmt.Errorf("uid %d (process %d) may not use this socket: it is for uid %d", peer.UID, peer.PID, s.uid)
	}
	if s.config.Authorize != nil {
		return s.config.Authorize(peer)
	}
	return nil
}
