// Package wire is the little HTTP/1.1 that mocks and generator need, written by hand so that both stay
// far cheaper than the router between them.
package wire

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
)

const maxBody = 64 << 20

// Request is one request as an engine reads it. Its slices are valid until the next ReadRequest.
type Request struct {
	Method string
	Path   string
	Body   []byte
	Close  bool
}

// ErrMalformed says that the peer does not speak HTTP/1.1 as this package reads it.
var ErrMalformed = errors.New("malformed HTTP")

// ReadRequest reads the next request of a connection into into. io.EOF: the peer closed between requests.
func ReadRequest(from *bufio.Reader, into *Request) error {
	line, err := readLine(from)
	if err != nil {
		return err
	}
	method, rest, ok := bytes.Cut(line, []byte(" "))
	target, _, ok2 := bytes.Cut(rest, []byte(" "))
	if !ok || !ok2 {
		return fmt.Errorf("%w: request line %q", ErrMalformed, line)
	}
	path, _, _ := bytes.Cut(target, []byte("?"))
	into.Method, into.Path = string(method), string(path)
	head, err := readHead(from)
	if err != nil {
		return noEOF(err)
	}
	into.Close = head.close
	into.Body = into.Body[:0]
	if head.chunked {
		return ReadChunked(from, func(part []byte) error {
			into.Body = append(into.Body, part...)
			if len(into.Body) > maxBody {
				return fmt.Errorf("%w: body over %d bytes", ErrMalformed, maxBody)
			}
			return nil
		})
	}
	if head.length < 0 {
		return nil
	}
	if head.length > maxBody {
		return fmt.Errorf("%w: content-length %d", ErrMalformed, head.length)
	}
	if cap(into.Body) < head.length {
		into.Body = make([]byte, 0, head.length)
	}
	into.Body = into.Body[:head.length]
	_, err = io.ReadFull(from, into.Body)
	return noEOF(err)
}

type head struct {
	length  int // -1: not given
	chunked bool
	close   bool
}

func readHead(from *bufio.Reader) (head, error) {
	found := head{length: -1}
	for {
		line, err := readLine(from)
		if err != nil {
			return found, noEOF(err)
		}
		if len(line) == 0 {
			return found, nil
		}
		name, value, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			return found, fmt.Errorf("%w: header %q", ErrMalformed, line)
		}
		value = bytes.TrimSpace(value)
		switch {
		case is(name, "content-length"):
			found.length, err = strconv.Atoi(string(value))
			if err != nil || found.length < 0 {
				return found, fmt.Errorf("%w: content-length %q", ErrMalformed, value)
			}
		case is(name, "transfer-encoding"):
			found.chunked = is(value, "chunked")
		case is(name, "connection"):
			found.close = is(value, "close")
		}
	}
}

// ReadChunked reads a chunked body to its end and gives each piece of data to take.
func ReadChunked(from *bufio.Reader, take func([]byte) error) error {
	for {
		line, err := readLine(from)
		if err != nil {
			return noEOF(err)
		}
		size, ok := parseHex(line)
		if !ok {
			return fmt.Errorf("%w: chunk size %q", ErrMalformed, line)
		}
		if size == 0 {
			return skipTrailers(from)
		}
		for size > 0 {
			part, err := from.Peek(min(size, from.Size()))
			if len(part) == 0 || (err != nil && len(part) < size) {
				return noEOF(err)
			}
			if err := take(part); err != nil {
				return err
			}
			size -= len(part)
			if _, err := from.Discard(len(part)); err != nil {
				return noEOF(err)
			}
		}
		if line, err := readLine(from); err != nil || len(line) != 0 {
			return errors.Join(ErrMalformed, noEOF(err))
		}
	}
}

func skipTrailers(from *bufio.Reader) error {
	for {
		line, err := readLine(from)
		if err != nil || len(line) == 0 {
			return noEOF(err)
		}
	}
}

func readLine(from *bufio.Reader) ([]byte, error) {
	line, err := from.ReadSlice('\n')
	if err != nil {
		if err == io.EOF && len(line) > 0 {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return bytes.TrimRight(line, "\r\n"), nil
}

func parseHex(line []byte) (int, bool) {
	size, digits := 0, 0
	for _, c := range line {
		switch {
		case c >= '0' && c <= '9':
			size = size<<4 | int(c-'0')
		case c >= 'a' && c <= 'f':
			size = size<<4 | int(c-'a'+10)
		case c >= 'A' && c <= 'F':
			size = size<<4 | int(c-'A'+10)
		case c == ';' || c == ' ':
			return size, digits > 0
		default:
			return 0, false
		}
		if digits++; digits > 8 {
			return 0, false
		}
	}
	return size, digits > 0
}

func is(text []byte, name string) bool {
	return len(text) == len(name) && bytes.EqualFold(text, []byte(name))
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
