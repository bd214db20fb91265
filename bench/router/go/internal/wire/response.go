package wire

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
)

// Conn is a client's keep-alive connection.
type Conn struct {
	net.Conn
	Reader *bufio.Reader
}

// Dial opens a connection; buffer is its read buffer in bytes.
func Dial(address string, buffer int) (*Conn, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	return &Conn{Conn: conn, Reader: bufio.NewReaderSize(conn, buffer)}, nil
}

// Response is the head of an answer.
type Response struct {
	Status  int
	Close   bool
	chunked bool
	length  int
}

// ReadResponse reads the head of the next answer; Body must be read before the next one.
func (c *Conn) ReadResponse() (Response, error) {
	line, err := readLine(c.Reader)
	if err != nil {
		return Response{}, noEOF(err)
	}
	_, rest, _ := bytes.Cut(line, []byte(" "))
	code, _, _ := bytes.Cut(rest, []byte(" "))
	status, err := strconv.Atoi(string(code))
	if err != nil {
		return Response{}, fmt.Errorf("%w: status line %q", ErrMalformed, line)
	}
	found, err := readHead(c.Reader)
	return Response{Status: status, Close: found.close, chunked: found.chunked, length: found.length}, err
}

// ReadBody gives the body of response, piece by piece and without its framing, to take.
func (c *Conn) ReadBody(response Response, take func([]byte) error) error {
	if response.chunked {
		return ReadChunked(c.Reader, take)
	}
	left := response.length
	if left < 0 {
		return fmt.Errorf("%w: an answer without a length", ErrMalformed)
	}
	for left > 0 {
		if _, err := c.Reader.Peek(1); err != nil {
			return noEOF(err)
		}
		part, err := c.Reader.Peek(min(left, c.Reader.Buffered()))
		if err != nil && err != io.EOF {
			return err
		}
		if err := take(part); err != nil {
			return err
		}
		left -= len(part)
		if _, err := c.Reader.Discard(len(part)); err != nil {
			return noEOF(err)
		}
	}
	return nil
}

// ReadAll is the whole body of response.
func (c *Conn) ReadAll(response Response) ([]byte, error) {
	var body []byte
	err := c.ReadBody(response, func(part []byte) error {
		body = append(body, part...)
		return nil
	})
	return body, err
}
